"""Carries out one command that a person started from the dashboard, and writes how it ended.

    python -m app.carry_out FOLDER

The folder is `actions/<token>` of the home (see `app.actions`). What the command prints goes to its
`output.txt`; the last line of it is what the page tells.
"""

import subprocess
import sys
from pathlib import Path

import msgspec

from app.actions import Begun, alive, outcome, write_end

_TAIL = 64 << 10


def main(folder: Path) -> int:
    begun = msgspec.json.decode((folder / "action.json").read_bytes(), type=Begun)
    with alive(folder):
        command = [sys.executable, "-m", "app.cli", *begun.arguments]
        code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
        write_end(folder, outcome(code, _last_words(folder / "output.txt", code)))
    return code


def _last_words(output: Path, code: int) -> str:
    text = output.read_bytes()[-_TAIL:].decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else f"ended with exit code {code} and said nothing"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

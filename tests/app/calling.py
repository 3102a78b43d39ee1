"""The command line as a person or a script runs it: a process of its own, a home of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FLYWHEEL = [sys.executable, "-m", "app.cli"]


class Said(NamedTuple):
    code: int
    out: str
    err: str

    def object(self) -> Any:
        """The one object that a script reads; anything else beside it fails."""
        lines = self.out.splitlines()
        assert len(lines) == 1, f"{len(lines)} lines on standard output: {self.out!r} {self.err}"
        found = json.loads(lines[0])
        assert isinstance(found, dict)
        return found


def surroundings(home: Path, **more: str) -> dict[str, str]:
    """This process's environment without what this process set up for its own home."""
    mine = ("FLYWHEEL_", "PREFECT_", "MLFLOW_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return {
        **kept,
        "FLYWHEEL_HOME": str(home),
        "FLYWHEEL_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        **more,
    }


def call(*arguments: object, home: Path, cwd: Path | None = None, **more: str) -> Said:
    done = subprocess.run(
        [*FLYWHEEL, *map(str, arguments)],
        env=surroundings(home, **more),
        cwd=cwd or home.parent,
        capture_output=True,
        text=True,
        timeout=900,
    )
    return Said(done.returncode, done.stdout, done.stderr)

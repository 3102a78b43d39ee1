"""Child processes that never outlive their parent, even one killed with -9.

The parent keeps the write end of the child's standard input; when it is gone the child reads the
end of file and leaves. Unlike a parent-death signal this depends on no thread of the parent.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path


def start(
    module: str,
    arguments: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts `python -m module arguments`, its output appended to `log`. The module must call
    `follow_parent` first thing."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {}), "FLYWHEEL_FOLLOW_PARENT": "1"},
            cwd=Path(__file__).resolve().parent.parent,
            start_new_session=True,
        )


def follow_parent() -> None:
    """Makes this process leave at once when the parent that `start`ed it is gone."""
    if os.environ.pop("FLYWHEEL_FOLLOW_PARENT", None):
        threading.Thread(target=_leave_at_end_of_input, daemon=True).start()


def _leave_at_end_of_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)

"""Child processes that never outlive their parent, even one killed with -9.

The parent keeps the write end of the child's standard input; when it is gone the child reads the
end of file and leaves. Unlike a parent-death signal this depends on no thread of the parent.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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


class Kept:
    """A child that is started again when it ends: at once, then after 1, 2, 4 … 30 seconds as long
    as it does not live. Not safe for several threads at a time."""

    def __init__(self, begin: Callable[[], "subprocess.Popen[bytes]"]) -> None:
        self._begin = begin
        self.child = begin()
        self.restarts = 0
        self._failures = 0
        self._since = time.monotonic()
        self._ended: float | None = None

    def tend(self) -> bool:
        """Starts the child again where it ended and its pause is over; whether it did."""
        now = time.monotonic()
        if self.child.poll() is None:
            return False
        if self._ended is None:
            self._ended = now
            self._failures = 0 if now - self._since > _LIVED_S else self._failures + 1
        pause = 0.0 if self._failures < 2 else min(30.0, 2.0 ** (self._failures - 2))
        if now - self._ended < pause:
            return False
        self.child, self._since, self._ended = self._begin(), time.monotonic(), None
        self.restarts += 1
        return True

    def stop(self, wait_s: float) -> None:
        """Asks the child to end, and makes it after `wait_s`."""
        self.child.terminate()
        try:
            self.child.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        if self.child.stdin is not None:
            self.child.stdin.close()


_LIVED_S = 60.0
"""A child that lived this long was well: its next end is the first again."""

"""Named places where a test may kill the process, to prove that nothing is lost there.

Nothing happens unless `arm` was called with the place's name (Settings does it, from
FLYWHEEL_FAILPOINT).
"""

import os
import signal

_armed: set[str] = set()


def arm(name: str) -> None:
    _armed.add(name)


def disarm() -> None:
    _armed.clear()


def failpoint(name: str) -> None:
    """Kills this process with SIGKILL where `name` is armed."""
    if name in _armed:
        os.kill(os.getpid(), signal.SIGKILL)

"""Moments: times of decisions, each later than all given before, however the clock is set.

Enters a home; leaves nanoseconds since the epoch. What is "the latest" is asked of these times, so
a clock that was set back between two decisions must not turn them round. A file has the last one.
"""

import contextlib
import time

from flywheel import durable
from flywheel.errors import FlywheelError
from flywheel.home import Home
from storage.locks import held

_WAIT_S = 30.0


def moment(home: Home) -> int:
    """The time by this machine's clock, or just after the last moment where that is later.

    Raises:
        Full: no space left to keep it.
    """
    file = home.root / "moment"
    lock = home.locks / "moment.lock"
    with held(lock, wait_s=_WAIT_S, busy=f"{lock} has been held for over {_WAIT_S:g} s"):
        try:
            last = int(file.read_bytes())
        except (FileNotFoundError, ValueError):
            last = _last_decision(home)
        now = max(time.time_ns(), last + 1)
        durable.write(file, b"%d\n" % now)
        return now


def _last_decision(home: Home) -> int:
    """Of a home without the file: what its ledger knows. A store that cannot be read now must not
    stop a rollback."""
    from storage.queries import records

    with contextlib.suppress(FlywheelError):
        return max((one.at for one in records(home, "decision")), default=0)
    return 0

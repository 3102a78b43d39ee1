"""Moments: times of decisions, each later than all given before, however the clock is set.

Enters a home; leaves nanoseconds since the epoch. What is "the latest" is asked of these times, so
a clock that was set back between two decisions must not turn them round. A file has the last one.
How far ahead of the clock it may be is not bounded by the clock, which may be back at 1970; but
what no clock shows is not believed, since nothing could be later.
"""

import contextlib
import time

from flywheel import durable
from flywheel.errors import CorruptFile, FlywheelError
from flywheel.home import Home
from storage.locks import held

_WAIT_S = 30.0
_NONE_YET = 7_258_118_400 * 10**9
"""The year 2200: records hold times until 2262, so there is always room to count on."""


def moment(home: Home) -> int:
    """The time by this machine's clock, or just after the last moment where that is later.

    Raises:
        Full: no space left to keep it.
    """
    lock = home.locks / "moment.lock"
    with held(lock, wait_s=_WAIT_S, busy=f"{lock} has been held for over {_WAIT_S:g} s"):
        try:
            last = last_moment(home)
        except CorruptFile:
            last = None
        if last is None:
            last = _last_decision(home)
        now = max(time.time_ns(), last + 1)
        durable.write(home.root / "moment", b"%d\n" % now)
        return now


def last_moment(home: Home) -> int | None:
    """What the file says; None = there is none yet.

    Raises:
        CorruptFile: it says what no clock has shown.
    """
    file = home.root / "moment"
    try:
        said = file.read_bytes()
        last = int(said)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptFile(f"{file} has no time in it: {said[:40]!r}") from error
    if not 0 <= last < _NONE_YET:
        raise CorruptFile(f"{file} says {str(last)[:40]}, which no clock has shown")
    return last


def _last_decision(home: Home) -> int:
    """Of a home without the file: what its ledger knows. A store that cannot be read now must not
    stop a rollback."""
    from storage.queries import records

    with contextlib.suppress(FlywheelError):
        times = (one.at for one in records(home, "decision"))
        return max((at for at in times if at < _NONE_YET), default=0)
    return 0

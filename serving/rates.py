"""How much of a rate is left: the generic cell rate algorithm, in its virtual scheduling form.

(ATM Forum, Traffic Management 4.0, annex C.) A rate of L a minute lets one pass every T = 60 s / L;
its whole state is one number, the theoretical arrival time (TAT) of what would come next if all
came evenly. A request of cost c at time t moves it to max(TAT, t) + c T, and conforms where that
lies no more than a minute after t: so a whole minute's worth may come at once, after a quiet one.
Times are nanoseconds; all here is pure.
"""

from flywheel.records import Record

MINUTE = 60 * 10**9


class Left(Record, frozen=True, kw_only=True):
    """What an account may still do, as OpenAI's x-ratelimit headers have it."""

    limit: int
    remaining: int
    reset_ns: int
    """Until all of it is there again."""


def pass_by(tat: int, now: int, limit: int, cost: int) -> tuple[int, int]:
    """The TAT after `cost`, and for how long the request has to wait before it conforms; 0 = it
    does. What costs more than a whole minute's worth counts as that."""
    after = sane(tat, now) + min(cost, limit) * MINUTE // limit
    return after, max(0, after - now - MINUTE)


def correct(tat: int, now: int, limit: int, reserved: int, spent: int) -> int:
    """The TAT once it is known what a request really took; a debt is paid by those after it."""
    return tat + (min(spent, 2 * limit) - min(reserved, limit)) * MINUTE // limit


def left(tat: int, now: int, limit: int) -> Left:
    ahead = sane(tat, now) - now
    remaining = max(0, MINUTE - ahead) * limit // MINUTE
    return Left(limit=limit, remaining=remaining, reset_ns=ahead)


def sane(tat: int, now: int) -> int:
    """No earlier than now, since what was not used is not saved up; no later than two minutes on,
    which only a clock that was set back could show."""
    return min(max(tat, now), now + 2 * MINUTE)

"""Whether what somebody sent may be learnt from: by their word, and by when it must be gone.

Enter a trace, what [retention] asks for, and a moment that is not the clock's but the turn's, so
that one turn comes out the same however long it takes; leaves the reason why not, for people.
"""

from datetime import UTC, datetime
from typing import Protocol


class Sent(Protocol):
    """A trace, or what is told of one."""

    @property
    def origin(self) -> str: ...
    @property
    def consent(self) -> str | None: ...
    @property
    def expires(self) -> int | None: ...


def why_not(trace: Sent, *, granted: bool, at: int | None) -> str | None:
    """None = it may be.

    Args:
        granted: what is recorded needs a yes. What was sampled has no sender who could say one.
        at: nanoseconds; None = nothing has an end yet.
    """
    if trace.consent == "denied":
        return "its sender did not consent"
    if over(trace.expires, at):
        assert trace.expires is not None
        return f"it was to be gone by {day(trace.expires)}, as its sender said"
    sampled = trace.origin in ("rollout", "evaluation")
    if granted and not sampled and trace.consent != "granted":
        return "its sender has not consented, which [retention] asks for"
    return None


def over(expires: int | None, at: int | None) -> bool:
    return expires is not None and at is not None and expires <= at


def day(moment: int) -> str:
    """A moment in nanoseconds as people write it, UTC: without the time where that is midnight."""
    found = datetime.fromtimestamp(moment // 10**9, UTC)
    form = "%Y-%m-%d" if moment % (86_400 * 10**9) == 0 else "%Y-%m-%d %H:%M:%S UTC"
    return found.strftime(form)

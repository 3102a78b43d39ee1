"""`flywheel replay`: recorded traces graded by another version of a reward, beside what they had.

Enter traces and an environment. Leaves what changed, reward by reward. Invariant: the store is only
read, unless the caller says `save`.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.progress import report
from flywheel.records import Grade, Record
from tasks.regrade import Judging, Narrowed, Regraded, keep, regraded

if TYPE_CHECKING:
    from environments.define import Environment

MOST = 50
"""Changes that are listed: the largest ones."""


class Change(Record, frozen=True, kw_only=True, omit_defaults=False):
    trace: str
    reward: str
    span: str | None
    before: float | None
    """None = it had none, or null: `reason_before` says which."""
    after: float | None
    reason_before: str | None
    reason_after: str | None

    @property
    def size(self) -> float:
        """Becoming known or unknown is larger than any change of a value."""
        if self.before is None or self.after is None:
            return math.inf if (self.before is None) != (self.after is None) else 0.0
        return abs(self.after - self.before)


def replay(
    home: Home,
    environment: "Environment",
    which: Narrowed,
    judging: Judging = list,
    *,
    save: bool = False,
) -> dict[str, Any]:
    """
    Raises:
        UsageError: no such trace.
    """
    from storage.committer import commit
    from storage.moments import moment

    if save:
        commit(home)
    now, traces, stored = moment(home) if save else 0, 0, 0
    rewards: dict[str, _Tally] = {}
    listed: list[Change] = []
    for batch in regraded(home, environment, which, judging):
        traces += len(batch)
        found = [change for one in batch for change in compared(one)]
        for change in found:
            rewards.setdefault(change.reward, _Tally()).add(change)
        kept = [change for change in [*listed, *found] if change.size > 0 or which.ids]
        listed = sorted(kept, key=lambda change: -change.size)[:MOST]
        stored += keep(home, batch, now) if save else 0
        report("replaying", traces)
    if which.ids and not traces:
        raise UsageError(f"no trace {which.ids[0]!r} in this home: `flywheel lineage ID` finds one")
    if stored:
        commit(home)
    return {
        "environment": environment.name,
        "grader": environment.digest,
        "traces": traces,
        "rewards": {name: one.told() for name, one in rewards.items()},
        "changes": listed,
        "saved": stored if save else None,
    }


def compared(one: Regraded) -> list[Change]:
    """Every reward of either version, in the new one's order. What people or another environment
    gave under other names is neither's."""
    before = {(grade.reward, grade.span_id): grade for grade in one.before}
    after = {(grade.reward, grade.span_id): grade for grade in one.after}
    own = {key: grade for key, grade in before.items() if key in after or _of_this(grade, one)}
    return [_change(one.trace.id, key, before.get(key), after.get(key))
            for key in {**after, **own}]  # fmt: skip


def _of_this(grade: Grade, one: Regraded) -> bool:
    """Whether it may be of an earlier version: another environment poses other problems."""
    if grade.kind in ("human", "feedback"):
        return False
    return one.problem is None or grade.problem_id in (None, one.problem.id)


def _change(
    trace: str, key: tuple[str, str | None], before: Grade | None, after: Grade | None
) -> Change:
    return Change(
        trace=trace,
        reward=key[0],
        span=key[1],
        before=before.value if before else None,
        after=after.value if after else None,
        reason_before=before.reason if before else "never graded",
        reason_after=after.reason if after else "no longer a reward",
    )


class _Tally:
    """What became of one reward."""

    def __init__(self) -> None:
        self.same = self.up = self.down = self.known = self.unknown = 0
        self.before: list[float] = []
        self.after: list[float] = []

    def add(self, change: Change) -> None:
        if change.before is not None and change.after is not None:
            self.before.append(change.before)
            self.after.append(change.after)
            self.same += change.before == change.after
            self.up += change.after > change.before
            self.down += change.after < change.before
        elif change.before is None and change.after is None:
            self.same += 1
        elif change.before is None:
            self.known += 1
        else:
            self.unknown += 1

    def told(self) -> dict[str, Any]:
        return {
            "same": self.same,
            "up": self.up,
            "down": self.down,
            "became_known": self.known,
            "became_null": self.unknown,
            "mean_before": _mean(self.before),
            "mean_after": _mean(self.after),
        }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None

"""Grades anew, beside what stands: what an environment says of recorded traces now.

Enter traces in batches, and an environment (another one, or another version of the one that graded
them). Leave old and new grades side by side. Invariant: nothing is stored but by `keep`, and that
stores only what differs from what the same grader said before, so that doing it again adds nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from flywheel.home import Home
from flywheel.records import Grade, Problem, Trace

if TYPE_CHECKING:
    from environments.define import Environment
    from environments.grading import Item

BATCH = 2000
RECORDED = ("production", "import", "demonstration")
"""Origins of what happened outside our own runs."""


Judging = Callable[[list["Item"]], Sequence["Item"]]
"""Gives items their judge; their order is the order in which its budget is spent."""


class Regraded(NamedTuple):
    trace: Trace
    problem: Problem | None
    before: list[Grade]
    """The latest of each reward, by whichever grader."""
    after: list[Grade]


class Narrowed(NamedTuple):
    """Which traces."""

    project: str | None = None
    origins: Sequence[str] | None = RECORDED
    since: int | None = None
    until: int | None = None
    ids: Sequence[str] | None = None


def regraded(
    home: Home,
    environment: "Environment",
    which: Narrowed,
    judging: Judging = list,
    *,
    batch: int = BATCH,
) -> Iterator[list[Regraded]]:
    """Batch by batch, oldest traces first. Those of runs are graded beside all others of their
    problem there, where rewards ask for them."""
    from storage.queries import traces

    found = traces(
        home, project=which.project, origin=which.origins, since=which.since, until=which.until,
        ids=which.ids, batch=batch,
    )  # fmt: skip
    for some in found:
        yield _batch(home, environment, some, judging)


def _batch(
    home: Home, environment: "Environment", traces: Sequence[Trace], judging: Judging
) -> list[Regraded]:
    from environments.grading import grade_all
    from storage.judgements import grades

    beside = _groups(home, environment, traces)
    items = judging([
        one._replace(group=beside.get((one.trace.run_id, one.trace.problem_id)))
        for one in items_of(home, environment, traces)
    ])  # fmt: skip
    before: dict[str, list[Grade]] = {trace.id: [] for trace in traces}
    for grade in grades(home, trace_ids=list(before)):
        before[grade.trace_id].append(grade)
    given = grade_all(environment, items)
    after = {item.trace.id: (item, found) for item, found in zip(items, given, strict=True)}
    return [
        Regraded(item.trace, item.problem, before[id], found)
        for id, (item, found) in ((trace.id, after[trace.id]) for trace in traces)
    ]


def items_of(home: Home, environment: "Environment", traces: Sequence[Trace]) -> list["Item"]:
    """Each trace with the problem that it was an answer to: the stored one, else what it poses."""
    from environments.asked import Item, posed
    from storage.judgements import feedback_for
    from storage.queries import problems

    asked = {trace.problem_id for trace in traces if trace.problem_id}
    stored = {one.id: one for one in problems(home, ids=sorted(asked))} if asked else {}
    said = feedback_for(home, [one for one in traces if one.problem_id not in stored])
    found = []
    for trace in traces:
        problem = stored.get(trace.problem_id or "")
        if problem is None:
            found.append(posed(environment, trace, said.get(trace.id, ())))
        else:
            found.append(Item(trace, problem))
    return found


def _groups(
    home: Home, environment: "Environment", traces: Sequence[Trace]
) -> dict[tuple[str | None, str | None], tuple[Trace, ...]]:
    """All attempts at the traces' problems in their runs, where a reward asks for them."""
    from storage.queries import traces as stored

    if not any(method.mark.kind == "group_reward" for method in environment.methods):
        return {}
    runs: dict[str, set[str]] = {}
    for trace in traces:
        if trace.run_id and trace.problem_id:
            runs.setdefault(trace.run_id, set()).add(trace.problem_id)
    found: dict[tuple[str | None, str | None], list[Trace]] = {}
    for run, problems in runs.items():
        for some in stored(home, run_id=run, problem_ids=problems):
            for one in some:
                found.setdefault((run, one.problem_id), []).append(one)
    return {key: tuple(group) for key, group in found.items()}


def keep(home: Home, batch: Sequence[Regraded], at: int) -> int:
    """Puts new grades into the inbox, without those that say what the grader said before; returns
    how many."""
    from storage.inbox import Inbox
    from storage.judgements import grades

    graders = {grade.grader for one in batch for grade in one.after}
    stands: dict[str, Grade] = {}
    for grader in sorted(graders):
        ids = [one.trace.id for one in batch]
        stands |= {grade.id: grade for grade in grades(home, trace_ids=ids, grader=grader)}
    new = [
        replace(grade, at=at)
        for one in batch
        for grade in one.after
        if not _says(stands.get(grade.id), grade)
    ]
    if new:
        Inbox(home).append(new)
    return len(new)


def _says(stands: Grade | None, grade: Grade) -> bool:
    return stands is not None and replace(stands, at=0) == replace(grade, at=0)

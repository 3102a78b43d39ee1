"""Grade: the environment says what recorded traces were worth, without running them again.

What a shadow answered poses the problem of the request that it copies: people speak of the answer
that they saw, and what they say is right is right for the other one too.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.progress import report
from flywheel.records import Grade, Trace, main_spans
from tasks.judges import Heard, judge_of, sampled
from tasks.step import step
from tasks.turns import Turn, environment_of, home, project_of

if TYPE_CHECKING:
    from environments.asked import Item
    from environments.define import Environment
    from flywheel.data_section import LabelsSection


@step(minutes=60, keep=False)
def grade_recorded(turn: Turn) -> dict[str, Any]:
    """Grades what of the recorded traces came, changed or was spoken of since the last look, and
    all of them where the grader is another one, against what feedback says is true.

    It leaves no note: what an hourly look graded is kept, and the turn that takes it notes it.

    Returns: counts over all recorded traces; "looked_at" are those of this look.
    """
    from environments.grading import grade_all
    from storage.changed import gradings
    from storage.committer import commit
    from storage.moments import moment
    from storage.queries import traces
    from tasks.looks import due, grader_of, looked

    project = project_of(turn)
    environment, judge = environment_of(project), judge_of(project, home())
    now, heard, seen = moment(home()), Heard(judge), 0
    grader = grader_of(project, environment, judge)
    batches = traces(
        home(), project=project.traffic, origin=RECORDED, snapshot=turn.sequence,
        ids=due(turn, project, grader), batch=2000,
    )  # fmt: skip
    for batch in batches:
        items = posed_by(environment, batch, turn.sequence, project.labels)
        given = grade_all(environment, sampled(items, project, judge))
        for one in given:
            heard.add(one)
        keep_new([grade for one in given for grade in one], now)
        seen += len(batch)
        report("grading", seen)
    commit(home())
    looked(turn, grader)
    names = [one.name for one in environment.methods]
    found = gradings(home(), project.traffic, names, MOST_REASONS)
    return {
        "graded": found.graded,
        "not_gradable": found.unknown,
        "reasons": found.reasons,
        "looked_at": seen,
        "judge": heard.told(),
    }


def keep_new(grades: Sequence[Grade], at: int) -> int:
    """Puts those into the inbox that say another thing than what stands of their trace and reward;
    returns how many."""
    from storage.inbox import Inbox
    from storage.judgements import grades as stored

    ids = sorted({one.trace_id for one in grades})
    stands = {(one.trace_id, one.span_id, one.reward): one for one in stored(home(), trace_ids=ids)}
    new = [
        msgspec.structs.replace(one, at=at)
        for one in grades
        if (old := stands.get((one.trace_id, one.span_id, one.reward))) is None
        or msgspec.structs.replace(old, at=0) != msgspec.structs.replace(one, at=0)
    ]
    if new:
        Inbox(home()).append(new)
    return len(new)


MOST_REASONS = 10


def why_null(grades: Sequence[Grade]) -> str:
    """The first reason among the rewards of one trace that could not be given, short enough to be
    counted."""
    reasons = (one.reason for one in grades if one.value is None and one.weight)
    return (next(reasons, None) or "no reward").split("\n")[0][:120]


def posed_by(
    environment: "Environment",
    batch: Sequence[Trace],
    sequence: int,
    labels: "LabelsSection | None" = None,
) -> "list[Item]":
    """Each trace with its problem; a shadow's with that of what it copies, where this is one call:
    what is said of a whole conversation is not said of one answer in it."""
    from environments.asked import posed
    from storage.judgements import feedback_for
    from storage.queries import traces

    copies = {trace.id: of for trace in batch if (of := copied_by(trace)) is not None}
    ids = sorted(set(copies.values()))
    seen: dict[str, Trace] = {
        one.id: one
        for some in (traces(home(), ids=ids, snapshot=sequence) if ids else ())
        for one in some
        if sum(span.call is not None for span in main_spans(one)) == 1
    }
    every = [*batch, *seen.values()]
    said = feedback_for(home(), every, snapshot=sequence, labels=labels)
    found = []
    for trace in batch:
        poses = seen.get(copies.get(trace.id, ""), trace)
        found.append(posed(environment, poses, said.get(poses.id, ()))._replace(trace=trace))
    return found


def copied_by(trace: Trace) -> str | None:
    """Id of the trace that users saw, where this one is a shadow's."""
    for span in main_spans(trace):
        told = span.attributes.get("shadow_of")
        if isinstance(told, dict) and isinstance(told.get("trace"), str):
            return str(told["trace"])
    return None


RECORDED = ("production", "import", "demonstration")
"""Origins of what happened outside our own runs."""

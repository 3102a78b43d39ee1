"""Answers out of the store, with what is known of each: a trace, its grades, the problem it is of.

Enter a turn and where answers come from; leave batches of them, and rows. Nothing is judged here.
"""

from collections.abc import Iterator
from typing import NamedTuple

from flywheel.records import Grade, Problem, Span, Trace, main_spans
from flywheel.rows import TrainingRow
from tasks.grade import RECORDED
from tasks.turns import Turn, environment_of, home, project_of


class Answered(NamedTuple):
    """A trace with what is known of it."""

    trace: Trace
    grades: list[Grade]
    problem: Problem | None


def rollouts(turn: Turn) -> Iterator[list[Trace]]:
    """The turn's own; of another project all that its turns have left."""
    from storage.queries import traces

    other = project_of(turn).traffic
    if other != turn.project:
        return traces(home(), project=other, origin=("rollout",), snapshot=turn.sequence)
    return traces(home(), project=turn.project, origin=("rollout",), run_id=turn.run_id)


def recorded(turn: Turn) -> Iterator[list[Trace]]:
    from storage.queries import traces

    traffic = project_of(turn).traffic
    return traces(home(), project=traffic, origin=RECORDED, snapshot=turn.sequence)


SOURCES = {"rollouts": rollouts, "recorded": recorded}


def graded(batches: Iterator[list[Trace]]) -> Iterator[list[Answered]]:
    """Traces with their grades, and the problem that these are of."""
    from storage.queries import grades, problems

    for batch in batches:
        given: dict[str, list[Grade]] = {trace.id: [] for trace in batch}
        for grade in grades(home(), trace_ids=list(given)):
            given[grade.trace_id].append(grade)
        asked = {
            trace_id: next((one.problem_id or "" for one in found), "")
            for trace_id, found in given.items()
        }
        wanted = sorted({one for one in asked.values() if one})
        known = {one.id: one for one in problems(home(), ids=wanted)}
        yield [Answered(one, given[one.id], known.get(asked[one.id])) for one in batch]


def row_of(turn: Turn, answered: Answered) -> TrainingRow | None:
    """The trace's last answer, with its whole prompt; None where it does not end in one."""
    from environments.grading import score

    calls = main_spans(answered.trace)
    if not calls:
        return None
    return call_row(turn, answered, calls[-1], score(answered.grades))


def call_row(
    turn: Turn, answered: Answered, span: Span, reward: float | None
) -> TrainingRow | None:
    """One model call of the trace as a row; None where it has no answer."""
    trace, graded, problem = answered
    call = span.call
    if call is None or not call.choices or "failed_by" in trace.attributes:
        return None
    choice = call.choices[0]
    confirmed = [one.confirmed_by for one in graded if one.weight and one.confirmed_by]
    return TrainingRow(
        trace_id=trace.id,
        span_id=span.id,
        messages=call.input,
        completion=choice.message,
        problem_id=problem.id if problem else None,
        slice=problem.slice if problem else "all",
        conversation=trace.conversation or (problem.conversation if problem else None),
        user=trace.user or (problem.user if problem else None),
        text=environment_of(project_of(turn)).text(call.input),
        tools=call.tools or (),
        tokens=choice.tokens,
        sampling=call.sampling,
        finish_reason=choice.finish_reason,
        reward=reward,
        confirmed_by=confirmed[0] if confirmed else None,
        origin=trace.origin,
        fidelity=trace.fidelity,
    )

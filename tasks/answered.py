"""Answers out of the store, with what is known of each: a trace, its grades, the problem it is of.

Enter a turn and where answers come from; leave batches of them, and rows. Nothing is judged here,
but what may not be learnt from does not come (`flywheel.consent`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from flywheel.consent import why_not
from flywheel.records import Grade, ModelCall, Problem, Span, Trace, main_spans
from flywheel.rows import Signal, TrainingRow
from tasks.grade import RECORDED
from tasks.turns import Turn, environment_of, home, project_of

if TYPE_CHECKING:
    from environments.define import Environment


_MANY = 8000
"""Traces at a time, where there are."""


class Answered(NamedTuple):
    """A trace with what is known of it."""

    trace: Trace
    grades: list[Grade]
    problem: Problem | None
    lineages: Mapping[str, str] = {}
    """A judge's digest -> the model that judged."""
    environment: "Environment | None" = None
    """The project's, where it was loaded for many. None = it is loaded for this one."""


def rollouts(turn: Turn) -> Iterator[list[Trace]]:
    """The turn's own; where every one is wanted, and of another project, all that turns have
    left."""
    from storage.queries import traces

    other = project_of(turn).traffic
    if other != turn.project or turn.every:
        return traces(
            home(), project=other, origin=("rollout",), snapshot=turn.sequence, batch=_MANY
        )
    return traces(home(), project=turn.project, origin=("rollout",), run_id=turn.run_id)


def recorded(turn: Turn) -> Iterator[list[Trace]]:
    from storage.queries import traces

    traffic = project_of(turn).traffic
    return traces(home(), project=traffic, origin=RECORDED, snapshot=turn.sequence, batch=_MANY)


SOURCES = {"rollouts": rollouts, "recorded": recorded}


def graded(turn: Turn, batches: Iterable[list[Trace]]) -> Iterator[list[Answered]]:
    """Traces that may be learnt from, with their grades, and the problem that these are of."""
    from storage.judgements import grades
    from storage.queries import problems

    project = project_of(turn)
    judges, environment = lineages(), environment_of(project)
    for batch in batches:
        given: dict[str, list[Grade]] = {trace.id: [] for trace in batch}
        for grade in grades(
            home(), trace_ids=list(given), until=turn.graded_until, labels=project.labels
        ):
            given[grade.trace_id].append(grade)
        asked = {
            trace_id: next((one.problem_id or "" for one in found), "")
            for trace_id, found in given.items()
        }
        wanted = sorted({one for one in asked.values() if one})
        known = {one.id: one for one in problems(home(), ids=wanted)} if wanted else {}
        found = [Answered(one, given[one.id], known.get(asked[one.id]), judges, environment)
                 for one in batch]  # fmt: skip
        yield willing(turn, found)


def willing(turn: Turn, batch: list[Answered]) -> list[Answered]:
    """Those that may be learnt from. What was sampled may be as the trace may that it was asked
    after."""
    granted = project_of(turn).retention.consent == "granted"
    posed = (one.problem.trace_id for one in batch if one.problem)
    said_no = not_to_learn_from(turn, posed)
    return [
        one
        for one in batch
        if why_not(one.trace, granted=granted, at=turn.at) is None
        and not (one.problem and one.problem.trace_id in said_no)
    ]


def allowed(turn: Turn, problems: Iterable[Problem]) -> list[Problem]:
    """Those of `problems` that the store has whose traces may still be learnt from."""
    several = list(problems)
    said_no = not_to_learn_from(turn, (one.trace_id for one in several))
    return [one for one in several if one.trace_id not in said_no]


def not_to_learn_from(turn: Turn, traces: Iterable[str | None]) -> set[str]:
    """Ids of those of `traces` that may not be learnt from (any more)."""
    from storage.known import unwilling

    granted = project_of(turn).retention.consent == "granted"
    return unwilling(home(), {one for one in traces if one}, granted=granted, at=turn.at)


def training_problems(turn: Turn) -> list[Problem]:
    """All that the store has of the project's environment, and that may be learnt from."""
    from storage.queries import problems

    stored = problems(home(), environment_of(project_of(turn)).name, split="train")
    return allowed(turn, stored)


def lineages() -> dict[str, str]:
    """Each judge that was ever calibrated, by its digest: the model that judged; of one that was
    trained here the base model that it stands on."""
    from storage.queries import records

    bases = {one.name: one.base_model for one in records(home(), "deployment")}
    return {
        one.judge: bases.get(one.model, one.model) or one.model
        for one in records(home(), "calibration")
    }


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
    trace, graded, problem = answered.trace, answered.grades, answered.problem
    call = span.call
    if call is None or not call.choices or "failed_by" in trace.attributes:
        return None
    environment = answered.environment or environment_of(project_of(turn))
    choice, written = call.choices[0], trace.origin == "demonstration"
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
        text=environment.text(call.input),
        tools=call.tools or (),
        tokens=choice.tokens,
        sampling=call.sampling,
        finish_reason=choice.finish_reason,
        reward=reward,
        confirmed_by=confirmed[0] if confirmed else None,
        origin=trace.origin,
        fidelity=trace.fidelity,
        source=trace.source,
        tenant=trace.tenant,
        answered_by=None if written else answered_by(call),
        at=span.end or span.start,
        corrected=written,
        signals=signals(answered, span),
    )


def answered_by(call: ModelCall) -> str | None:
    return call.deployment or call.response_model or call.model


def signals(answered: Answered, span: Span) -> tuple[Signal, ...]:
    """The grades of the whole trace, and of the step, by name."""
    given = [one for one in answered.grades if one.span_id in (None, span.id)]
    return tuple(
        Signal(
            reward=one.reward,
            value=one.value,
            weight=one.weight,
            kind=one.kind,
            confirmed_by=one.confirmed_by,
            grader=one.grader,
            lineage=answered.lineages.get(one.grader) if one.kind == "judge" else None,
        )
        for one in sorted(given, key=lambda one: (one.reward, one.span_id or ""))
    )

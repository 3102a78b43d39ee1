"""A group: all rollouts of one visit to a problem, as an algorithm reads them.

Enter: what was played, and its grades, in the order of k. Leaves: a Group, whose rollouts say what
of them can be trained on and what they earned, or why that is not known. Invariant: infrastructure
that failed is no reward, neither 0 nor any other.
"""

from collections.abc import Sequence

from environments.attempt import FAILED, FAILED_BY, Finished
from environments.grading import score
from environments.vector import token_values
from flywheel.records import Grade, Problem, Trace
from trainer.algorithms.contract import Group, Rollout
from trainer.paths import paths_of


def group_of(
    id: str,
    problem: Problem,
    environment: str,
    finished: Sequence[Finished],
    grades: Sequence[Sequence[Grade]],
) -> Group:
    """`grades` are parallel to `finished`, and beside those that it has from its live runtime."""
    rollouts = tuple(
        rollout_of(one.trace, [*one.grades, *given])
        for one, given in zip(finished, grades, strict=True)
    )
    return Group(id=id, problem=problem, environment=environment, rollouts=rollouts)


def rollout_of(trace: Trace, grades: Sequence[Grade]) -> Rollout:
    reward, reason = None, failure(trace)
    if reason is None:
        reward = score(grades)
        reason = None if reward is not None else _ungraded(grades)
    steps = any(grade.span_id is not None and grade.weight > 0 for grade in grades)
    return Rollout(
        trace=trace,
        paths=paths_of(trace).paths,
        reward=reward,
        reason=reason,
        values=token_values(trace, grades) if steps and reward is not None else {},
    )


def failure(trace: Trace) -> str | None:
    """Why the trace says nothing about its model."""
    if FAILED_BY not in trace.attributes:
        return None
    told = str(trace.attributes.get(FAILED, "")).partition("\n")[0]
    return f"failed by {trace.attributes[FAILED_BY]}: {told}"


def _ungraded(grades: Sequence[Grade]) -> str:
    for grade in grades:
        if grade.weight > 0 and grade.span_id is None and grade.value is None:
            return f"reward {grade.reward} could not be given: {grade.reason or 'not said why'}"
    return "it has no reward"

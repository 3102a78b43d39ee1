"""One episode of an evaluation in a few numbers, as its summary and the report's list need it.

Enter a trace, then its grades. Leaves a Row. Invariant: what could not be graded is None with the
reason, never 0.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import field
from msgspec.structs import replace

from environments.judges.standing import INFORMS
from flywheel.records import Grade, Problem, Record, Trace, model_spans
from tasks.judging import mean, seconds_of


class Row(Record, frozen=True, kw_only=True):
    """One episode, as the summary and the report's list need it."""

    problem: str
    attempt: int
    slice: str = "all"
    score: float | None = None
    """None = not graded; `why` says why."""
    passing: float | None = None
    """The score without group rewards: what pass@k is judged by."""
    why: str | None = None
    rewards: dict[str, float | None] = field(default_factory=dict)
    """Of the whole episode: rewards and metrics by name."""
    weights: dict[str, float] = field(default_factory=dict)
    """Of each; 0 = a metric."""
    steps: dict[str, float | None] = field(default_factory=dict)
    """Step rewards by name, each the mean over the episode's steps."""
    step_weights: dict[str, float] = field(default_factory=dict)
    informing: dict[str, str] = field(default_factory=dict)
    """Rewards whose judge was not shown to agree with people: why they have no weight."""
    ended: str = "unknown"
    failed: str | None = None
    """Infrastructure's fault: it has no end, and is made again on resume."""
    turns: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    """As the model's server or cache said it; None = it said nothing."""
    seconds: float | None = None
    place: tuple[int, int] = (0, 0)
    """Of its line in the log."""
    graded_at: tuple[int, int] | None = None
    """Of its grades' line."""


def row_of(trace: Trace, problem: Problem | None, attempt: int, failed: str | None) -> Row:
    """An episode that is not graded yet."""
    calls = [span.call for span in model_spans(trace) if span.call]
    return Row(
        problem=trace.problem_id or (problem.id if problem else ""),
        attempt=attempt,
        slice=problem.slice if problem else "all",
        why=failed,
        ended="infrastructure failed" if failed else ended_of(trace),
        failed=failed,
        turns=len(calls),
        input_tokens=total(call.usage.input_tokens for call in calls),
        output_tokens=total(call.usage.output_tokens for call in calls),
        cost_usd=total(call.cost_usd for call in calls),
        seconds=seconds_of(trace),
    )


def ended_of(trace: Trace) -> str:
    """How the episode ended, as its harness said it."""
    said = trace.attributes.get("ended")
    return str(said)[:80] if said else "not said"


def graded_row(row: Row, grades: Sequence[Grade], bonuses: frozenset[str] = frozenset()) -> Row:
    """The row with its grades; a reward that could not be given leaves the score unknown.

    Args:
        bonuses: names of group rewards. What they give depends on the other attempts, so that a
            right answer need not earn full marks: whether an attempt passed is judged without
            them, unless it has no other reward.
    """
    from environments.grading import score

    whole = [grade for grade in grades if grade.span_id is None]
    steps = [grade for grade in grades if grade.span_id is not None]
    own = [grade for grade in whole if grade.reward not in bonuses]
    value = score(whole)
    missing = [grade for grade in whole if grade.weight > 0 and grade.value is None]
    why = None if value is not None else "none of its rewards has a weight"
    if missing:
        why = f"{missing[0].reward}: {missing[0].reason or 'no reason was kept'}"
    return replace(
        row,
        score=value,
        passing=score(own) if any(grade.weight > 0 for grade in own) else value,
        why=why,
        rewards={grade.reward: grade.value for grade in whole},
        weights={grade.reward: grade.weight for grade in whole},
        steps={
            name: mean(grade.value for grade in steps if grade.reward == name)
            for name in dict.fromkeys(grade.reward for grade in steps)
        },
        step_weights={grade.reward: grade.weight for grade in steps},
        informing={
            grade.reward: why.removesuffix(")")
            for grade in whole
            if grade.weight == 0 and (why := (grade.reason or "").partition(INFORMS)[2])
        },
    )


def total(values: Iterable[Any]) -> Any:
    """Of what is known; None where any is not, or nothing is there."""
    known = list(values)
    return None if not known or None in known else sum(known)

"""What an evaluation found: from the rows of its episodes to the numbers that are shown.

Enter one small row an episode. Leaves plain data for JSON, the terminal and the report. Invariant:
each problem counts once, by the mean of its graded attempts; what could not be graded enters no
mean and is counted beside it; a cost that is not known is null, with the reason.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import field
from msgspec.structs import replace

from environments.judges.standing import INFORMS
from environments.passing import Tried, passing
from environments.statistics import Interval, mean_interval
from flywheel.records import Grade, Problem, Record, Trace, model_spans
from tasks.judging import mean, seconds_of

CONFIDENCE = 0.95


class Price(NamedTuple):
    """US dollars for a million tokens; None = not known."""

    input: float | None = None
    output: float | None = None


class Row(Record, frozen=True, kw_only=True):
    """One episode, as the summary and the report's list need it."""

    problem: str
    attempt: int
    slice: str = "all"
    score: float | None = None
    """None = not graded; `why` says why."""
    why: str | None = None
    rewards: dict[str, float | None] = field(default_factory=dict)
    """Of the whole episode: rewards and metrics by name."""
    weights: dict[str, float] = field(default_factory=dict)
    """Of each; 0 = a metric."""
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
        input_tokens=_sum(call.usage.input_tokens for call in calls),
        output_tokens=_sum(call.usage.output_tokens for call in calls),
        cost_usd=_sum(call.cost_usd for call in calls),
        seconds=seconds_of(trace),
    )


def ended_of(trace: Trace) -> str:
    """How the episode ended, as its harness said it."""
    said = trace.attributes.get("ended")
    return str(said)[:80] if said else "not said"


def graded_row(row: Row, grades: Sequence[Grade]) -> Row:
    """The row with its grades; a reward that could not be given leaves the score unknown."""
    from environments.grading import score

    whole = [grade for grade in grades if grade.span_id is None]
    value = score(whole)
    missing = [grade for grade in whole if grade.weight > 0 and grade.value is None]
    why = None if value is not None else "none of its rewards has a weight"
    if missing:
        why = f"{missing[0].reward}: {missing[0].reason or 'no reason was kept'}"
    return replace(
        row,
        score=value,
        why=why,
        rewards={grade.reward: grade.value for grade in whole},
        weights={grade.reward: grade.weight for grade in whole},
        informing={
            grade.reward: why.removesuffix(")")
            for grade in whole
            if grade.weight == 0 and (why := (grade.reason or "").partition(INFORMS)[2])
        },
    )


def summarise(
    rows: Sequence[Row], *, planned: int, samples: int, pass_mark: float, price: Price
) -> dict[str, Any]:
    """All numbers of a run.

    Args:
        planned: episodes that the run has in all.
        samples: attempts a problem.
        pass_mark: score from which an attempt counts as passed.
    """
    played = [row for row in rows if row.failed is None]
    slices = sorted({row.slice for row in rows})
    return {
        "episodes": {
            "planned": planned,
            "done": len(played),
            "graded": sum(row.score is not None for row in played),
            "not_graded": sum(row.score is None for row in played),
            "infrastructure": len(rows) - len(played),
        },
        "reward": interval_of(played, lambda row: row.score),
        "pass_mark": pass_mark,
        "pass": [
            passing(tried_of(played, pass_mark), k)._asdict() for k in range(1, samples + 1)
        ],
        "slices": [
            {"name": name, **interval_of(_in(played, name), lambda row: row.score)}
            for name in slices
        ],
        "rewards": rewards_of(played),
        "informing": {name: why for row in played for name, why in row.informing.items()},
        "ended": dict(Counter(row.ended for row in rows).most_common()),
        "not_graded": dict(Counter((row.why or "")[:200] for row in rows
                                   if row.score is None).most_common(10)),
        "tokens": {
            "input": _sum(row.input_tokens for row in rows),
            "output": _sum(row.output_tokens for row in rows),
            "not_said": sum(row.output_tokens is None for row in played),
            "output_per_episode": mean(row.output_tokens for row in played),
        },
        "cost": cost_of(rows, price),
        "seconds_per_episode": mean(row.seconds for row in played),
    }  # fmt: skip


def interval_of(rows: Sequence[Row], value: Callable[[Row], float | None]) -> dict[str, Any]:
    """The mean over problems, each by the mean of its own attempts, with its interval."""
    by_problem: dict[str, list[float | None]] = {}
    for row in rows:
        by_problem.setdefault(row.problem, []).append(value(row))
    found = mean_interval((mean(values) for values in by_problem.values()), CONFIDENCE)
    return _told(found)


def _told(found: Interval) -> dict[str, Any]:
    return {
        "mean": found.mean,
        "low": found.low,
        "high": found.high,
        "problems": found.known,
        "not_graded": found.missing,
    }


def tried_of(rows: Iterable[Row], pass_mark: float) -> list[Tried]:
    """Of each problem, its graded and its passed attempts."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        found = counts.setdefault(row.problem, [0, 0])
        if row.score is not None:
            found[0] += 1
            found[1] += row.score >= pass_mark - 1e-9
    return [Tried(graded, passed) for graded, passed in counts.values()]


def rewards_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each reward and metric by name, rewards first."""
    weights = {name: weight for row in rows for name, weight in row.weights.items()}
    return [
        {"name": name, "weight": weight, **_interval_of_reward(rows, name)}
        for name, weight in sorted(weights.items(), key=lambda item: (item[1] == 0, item[0]))
    ]


def _interval_of_reward(rows: Sequence[Row], name: str) -> dict[str, Any]:
    return interval_of([row for row in rows if name in row.rewards], lambda row: row.rewards[name])


def cost_of(rows: Iterable[Row], price: Price) -> dict[str, Any]:
    """What the model cost: as its server said, else by price; None with the reason."""
    total, unknown = 0.0, 0
    for row in rows:
        told = row.cost_usd
        if told is None and None not in (*price, row.input_tokens, row.output_tokens):
            told = (
                (row.input_tokens or 0) * (price.input or 0)
                + (row.output_tokens or 0) * (price.output or 0)
            ) / 1e6
        if told is None:
            unknown += row.turns > 0
        else:
            total += told
    if not unknown:
        return {"usd": total, "reason": None}
    if None in price:
        reason = "the price is not known: --price-input and --price-output say it"
    else:
        reason = f"of {unknown} episodes the server did not say how many tokens they took"
    return {"usd": None, "reason": reason}


def _in(rows: Iterable[Row], name: str) -> list[Row]:
    return [row for row in rows if row.slice == name]


def _sum(values: Iterable[Any]) -> Any:
    """Of what is known; None where any is not, or nothing is there."""
    known = list(values)
    return None if not known or None in known else sum(known)

"""What an evaluation found: from the rows of its episodes to the numbers that are shown.

Enter one small row an episode. Leaves plain data for JSON, the terminal and the report. Invariant:
each problem counts once, by the mean of its graded attempts; what could not be graded enters no
mean and is counted beside it; a cost that is not known is null, with the reason.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from environments.passing import Tried, passing
from environments.statistics import Interval, mean_interval
from tasks.env_words import brief
from tasks.eval_row import Row, total
from tasks.judging import mean

CONFIDENCE = 0.95


class Price(NamedTuple):
    """US dollars for a million tokens; None = not known."""

    input: float | None = None
    output: float | None = None


def summarise(
    rows: Sequence[Row], *, planned: int, samples: int, pass_mark: float, price: Price
) -> dict[str, Any]:
    """All numbers of a run.

    Args:
        planned: episodes that the run has in all.
        samples: attempts a problem.
        pass_mark: score, without group rewards, from which an attempt counts as passed.
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
        "not_graded": dict(Counter(brief(row.why or "")[:200] for row in rows
                                   if row.score is None).most_common(10)),
        "tokens": {
            "input": total(row.input_tokens for row in rows),
            "output": total(row.output_tokens for row in rows),
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
        if row.passing is not None:
            found[0] += 1
            found[1] += row.passing >= pass_mark - 1e-9
    return [Tried(graded, passed) for graded, passed in counts.values()]


def rewards_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each reward, step reward and metric by name, rewards first and metrics last."""
    weights = {name: weight for row in rows for name, weight in row.weights.items()}
    steps = {name: weight for row in rows for name, weight in row.step_weights.items()}
    whole = [
        {"name": name, "weight": weight, "kind": "reward" if weight else "metric",
         **_by_name(rows, name, lambda row: row.rewards)}
        for name, weight in sorted(weights.items())
    ]  # fmt: skip
    by_step = [
        {"name": name, "weight": weight, "kind": "step",
         **_by_name(rows, name, lambda row: row.steps)}
        for name, weight in sorted(steps.items())
    ]  # fmt: skip
    order = ("reward", "step", "metric")
    return sorted([*whole, *by_step], key=lambda one: order.index(one["kind"]))


def _by_name(
    rows: Sequence[Row], name: str, of: Callable[[Row], dict[str, float | None]]
) -> dict[str, Any]:
    return interval_of([row for row in rows if name in of(row)], lambda row: of(row)[name])


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

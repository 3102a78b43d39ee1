"""What the group rewards of an environment are made of: bonuses that adapt, and rankings.

Enter: all rollouts of one problem, and which of them are right or who beat whom. Leave: one number
for each, parallel to them. Invariant: a bonus never makes a wrong answer worth more, and is never
measured by a fixed length: the group itself says what is long.

    @group_reward(0.2)
    def brevity(self, group, problem):
        return conciseness(group, [right(one, problem) for one in group])
"""

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from environments.judges.contract import Judge, Judged
from flywheel.records import Trace, last_answer, model_spans

Cost = Literal["calls", "tool_calls", "tokens", "seconds", "usd"]
_PRIOR = 0.5
"""Of a comparison: how often each is taken to have beaten, and lost to, one of mean strength."""


def adaptive(costs: Sequence[float | None], right: Sequence[bool]) -> list[float | None]:
    """A bonus for the cheap ones among the right ones, within the group's own spread.

    With mean m and standard deviation d of the costs of the right ones:

        bonus_i = 1 / (1 + exp((cost_i - m) / d))     where i is right, 0 where it is wrong

    It lies between 0 and 1, is one half at the mean, and where all right ones cost the same (or one
    alone is right) one half for each. After Arora & Zanette, "Training Language Models to Reason
    Efficiently", 2025 (arXiv:2502.04463), whose factor on a right answer is 1 - α σ(·).
    None = it is right and its cost is not known.
    """
    known = [cost for cost, good in zip(costs, right, strict=True) if good and cost is not None]
    mean = sum(known) / len(known) if known else 0.0
    spread = math.sqrt(sum((cost - mean) ** 2 for cost in known) / len(known)) if known else 0.0

    def bonus(cost: float) -> float:
        distance = (cost - mean) / spread if spread > 1e-9 * abs(mean) else 0.0
        return 1 / (1 + math.exp(min(distance, 700.0)))

    return [
        0.0 if not good else None if cost is None else bonus(cost)
        for cost, good in zip(costs, right, strict=True)
    ]


def conciseness(group: Sequence[Trace], right: Sequence[bool]) -> list[float | None]:
    """`adaptive` on how long the final answers are: in tokens where they are known of all, else in
    characters."""
    return adaptive(_lengths(group), right)


def efficiency(
    group: Sequence[Trace], right: Sequence[bool], of: Cost = "tokens"
) -> list[float | None]:
    """`adaptive` on what the whole episodes took."""
    return adaptive([_cost(trace, of) for trace in group], right)


def _lengths(group: Sequence[Trace]) -> list[float | None]:
    choices = [last_answer(trace) for trace in group]
    tokens = [len(one.tokens.completion_ids) if one and one.tokens else None for one in choices]
    if None not in tokens:
        return [float(one or 0) for one in tokens]
    return [float(len(one.message.text)) if one else None for one in choices]


def _cost(trace: Trace, of: Cost) -> float | None:
    spans = model_spans(trace)
    if of == "calls":
        return float(len(spans))
    if of == "tool_calls":
        asked = (call for span in spans if span.call for call in span.call.choices[:1])
        return float(sum(len(choice.message.tool_calls) for choice in asked))
    if of == "seconds":
        ends = [span.end for span in trace.spans if span.end is not None]
        starts = [span.start for span in trace.spans if span.start is not None]
        return (max(ends) - min(starts)) / 1e9 if ends and starts else None
    calls = [span.call for span in spans if span.call]
    if of == "usd":
        return _sum(call.cost_usd for call in calls)
    return _sum(call.usage.output_tokens for call in calls)


def _sum(values: Iterable[float | None]) -> float | None:
    """None = one of them is not known."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


# --- who is better ------------------------------------------------------------------------------


class Match(NamedTuple):
    first: int
    second: int
    value: float
    """1 = the first won, 0 = the second, between = it was so undecided."""


def schedule(size: int, rounds: int | None = None, seed: int = 0) -> list[tuple[int, int]]:
    """Who meets whom. None = everyone everyone; else each meets `2 * rounds` others, by distance
    on a circle of seeded order, so that all are connected and n * rounds comparisons are enough."""
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size)]
    if rounds is None or rounds >= size // 2:
        return pairs
    circle = list(range(size))
    random.Random(seed).shuffle(circle)
    return [
        (circle[at], circle[(at + step) % size])
        for step in range(1, rounds + 1)
        for at in range(size)
    ]


def borda(size: int, matches: Iterable[Match]) -> list[float | None]:
    """The share of its comparisons that each won (Borda's count, by number of comparisons).
    None = it had none."""
    won, met = [0.0] * size, [0] * size
    for first, second, value in matches:
        won[first] += value
        won[second] += 1 - value
        met[first] += 1
        met[second] += 1
    return [one / count if count else None for one, count in zip(won, met, strict=True)]


def bradley_terry(size: int, matches: Iterable[Match], steps: int = 2000) -> list[float | None]:
    """The chance of each to beat one of mean strength, by the model of Bradley & Terry (1952).

    Strengths π maximise the likelihood with P(i beats j) = π_i / (π_i + π_j), by the iteration of
    Hunter, "MM algorithms for generalized Bradley-Terry models", 2004:

        π_i ← W_i / Σ_j n_ij / (π_i + π_j)

    with half a win and half a loss of each against a fixed strength of 1, so that it converges
    where someone never lost. Returned is π / (π + 1). None = it had no comparison.
    """
    won = [_PRIOR] * size
    met: list[dict[int, int]] = [{} for _ in range(size)]
    for first, second, value in matches:
        won[first] += value
        won[second] += 1 - value
        for one, other in ((first, second), (second, first)):
            met[one][other] = met[one].get(other, 0) + 1
    strength = [1.0] * size
    for _ in range(steps):
        before = strength
        strength = [
            won[i]
            / (
                2 * _PRIOR / (before[i] + 1)
                + sum(count / (before[i] + before[j]) for j, count in met[i].items())
            )
            for i in range(size)
        ]
        if all(abs(a - b) < 1e-9 for a, b in zip(before, strength, strict=True)):
            break
    return [one / (one + 1) if others else None for one, others in zip(strength, met, strict=True)]


async def pairwise(
    judge: Judge,
    rubric: str,
    group: Sequence[Trace],
    *,
    context: str = "",
    rounds: int | None = None,
    score: Callable[[int, Iterable[Match]], list[float | None]] = bradley_terry,
) -> list[float | None]:
    """A tournament of the final answers before the judge; pairs without a verdict do not count.
    Equal answers are equally good, and are not asked about."""
    import asyncio

    choices = [last_answer(trace) for trace in group]
    answers = [choice.message.text if choice else "" for choice in choices]
    pairs = schedule(len(group), rounds)

    async def meet(first: int, second: int) -> Judged:
        if answers[first] == answers[second]:
            return Judged(0.5, "the same answer")
        return await judge.compare(rubric, answers[first], answers[second], context=context)

    asked: list[Awaitable[Judged]] = [meet(*pair) for pair in pairs]
    verdicts = await asyncio.gather(*asked)
    matches = [
        Match(*pair, verdict.value)
        for pair, verdict in zip(pairs, verdicts, strict=True)
        if verdict.value is not None
    ]
    return score(len(group), matches)

"""What another deployment would have earned, estimated from answers whose routing was drawn.

Enter: whole answers, each with the deployment that was drawn, how likely that was, and its reward.
Leave: each arm's value, effective sample size, and the difference with its interval. With
probability p of the arm that answered, an arm's weight on an answer is w = 1/p where it answered,
else 0; one weight a whole answer, never a product over its tokens. Invariant: too small an
effective sample is "cannot tell", not a number to act on.

    IPS     V = mean(w r)                          Horvitz & Thompson, JASA 47 (1952)
    SNIPS   V = sum(w r) / sum(w)                  Swaminathan & Joachims, NeurIPS 2015, eq. 8
    DR      V = mean(q + w (r - q))                Dudík, Langford & Li, ICML 2011, eq. 1
    ESS     (sum w)^2 / sum(w^2)                   Kish (1965); Owen, "Monte Carlo" (2013), eq. 9.13

q(x, arm) is the arm's mean reward on the answer's slice, taken over the other half of the answers,
so that it is independent of what it is held against.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from environments.statistics import bootstrap_mean
from flywheel.ids import seed_of
from flywheel.records import Record

MIN_EFFECTIVE = 30.0
"""Answers' worth of evidence that each arm needs."""


class Logged(NamedTuple):
    """One whole answer to a request whose routing was drawn."""

    id: str
    arm: str
    probability: float
    """Of the arm that answered, when it was drawn; above 0."""
    reward: float
    slice: str = "all"


class Arm(Record, frozen=True, kw_only=True, omit_defaults=False):
    name: str
    answers: int
    effective: float
    """Answers' worth of evidence that the weights leave."""
    ips: float | None
    snips: float | None
    dr: float | None
    """None = it answered nothing."""


class OffPolicy(Record, frozen=True, kw_only=True, omit_defaults=False):
    answers: int
    candidate: Arm
    champion: Arm
    difference: float | None
    """Doubly robust: candidate less champion. None = `reason` says why it cannot be told."""
    low: float | None
    high: float | None
    reason: str | None


def off_policy(
    logged: Sequence[Logged],
    *,
    candidate: str,
    champion: str,
    confidence: float = 0.95,
    min_effective: float = MIN_EFFECTIVE,
) -> OffPolicy:
    """
    Args:
        logged: only answers that either arm could have been drawn for.
    """
    logged = sorted(one for one in logged if one.arm in (candidate, champion))
    parts = {name: _doubly_robust(logged, name) for name in (candidate, champion)}
    arms = {name: _arm(logged, name, parts[name]) for name in (candidate, champion)}
    difference = low = high = None
    reason = _too_little(list(arms.values()), min_effective)
    if reason is None:
        each = [ours - theirs for ours, theirs in zip(*parts.values(), strict=True)]
        difference = math.fsum(each) / len(each)
        seed = seed_of(candidate, champion, [one.id for one in logged])
        low, high = bootstrap_mean(each, confidence, seed=seed)
    return OffPolicy(
        answers=len(logged),
        candidate=arms[candidate],
        champion=arms[champion],
        difference=difference,
        low=low,
        high=high,
        reason=reason,
    )


def weight(one: Logged, arm: str) -> float:
    return 1 / one.probability if one.arm == arm else 0.0


def effective(weights: Sequence[float]) -> float:
    """Kish's effective sample size; 0 where no weight is above 0."""
    squares = math.fsum(one * one for one in weights)
    return math.fsum(weights) ** 2 / squares if squares else 0.0


def _arm(logged: Sequence[Logged], name: str, parts: Sequence[float]) -> Arm:
    weights = [weight(one, name) for one in logged]
    earned = math.fsum(w * one.reward for w, one in zip(weights, logged, strict=True))
    answers = sum(one.arm == name for one in logged)
    return Arm(
        name=name,
        answers=answers,
        effective=effective(weights),
        ips=earned / len(logged) if answers else None,
        snips=earned / math.fsum(weights) if answers else None,
        dr=math.fsum(parts) / len(parts) if answers else None,
    )


def _doubly_robust(logged: Sequence[Logged], arm: str) -> list[float]:
    """q + w (r - q) of each answer. Answers are halved by their place in the order of their ids."""
    models = [_Means(logged[other::2], arm) for other in (1, 0)]
    found = []
    for place, one in enumerate(logged):
        guess = models[place % 2].of(one.slice)
        found.append(guess + weight(one, arm) * (one.reward - guess))
    return found


class _Means:
    """An arm's mean reward by slice; of a slice that it never answered, over all slices."""

    def __init__(self, logged: Sequence[Logged], arm: str) -> None:
        own = [one for one in logged if one.arm == arm]
        rewards: dict[str, list[float]] = {}
        for one in own:
            rewards.setdefault(one.slice, []).append(one.reward)
        self._by_slice = {name: math.fsum(given) / len(given) for name, given in rewards.items()}
        self._overall = math.fsum(one.reward for one in own) / len(own) if own else 0.0

    def of(self, slice: str) -> float:
        return self._by_slice.get(slice, self._overall)


def _too_little(arms: Sequence[Arm], fewest: float) -> str | None:
    for arm in arms:
        if arm.effective < fewest:
            return (
                f"cannot tell: the answers of {arm.name} are worth {arm.effective:.0f}, "
                f"{fewest:.0f} are needed"
            )
    return None

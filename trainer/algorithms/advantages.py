"""Advantages: what each rollout's rewards say beside those of its group.

Enter: for each rollout of a group the values of its steps; a rollout with an outcome alone has one.
Leave: an advantage for each value, in the same shape. Invariant: a rollout counts once in its
group's baseline, however many steps it has, so that where all steps of a rollout have its outcome's
value these are the formulas of the papers.

With v_is the value of step s of rollout i of G, v_i the mean over its steps and μ the mean of v_i:

    mean           v_is − μ                       Liu et al. 2025, "Dr. GRPO", arXiv 2503.20783
    std            (v_is − μ) / (σ + ε)           Shao et al. 2024, "GRPO", arXiv 2402.03300
    leave_one_out  v_is − mean of v_j over j ≠ i  Ahmadian et al. 2024, "RLOO", arXiv 2402.14740
    maxrl          (v_is − μ) / μ                 Tajwar et al. 2026, "MaxRL", arXiv 2602.02710

where σ² is the mean over rollouts of the mean over steps of (v_is − μ)².
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

Baseline = Literal["mean", "std", "leave_one_out", "maxrl"]
Values = Sequence[Sequence[float]]
"""[rollout][step]"""

EPSILON = 1e-6
"""Added to a standard deviation."""


def advantages(values: Values, baseline: Baseline) -> list[list[float]]:
    """All 0 where there is nothing to tell the rollouts apart by; a rollout alone has no group.

    Raises:
        ValueError: `maxrl` of a reward below 0.
    """
    if len(values) < 2 or is_even(values):
        return [[0.0] * len(steps) for steps in values]
    return BASELINES[baseline](values)


def is_even(values: Values) -> bool:
    """Whether every step of every rollout is worth the same."""
    all_of = [value for steps in values for value in steps]
    return max(all_of) - min(all_of) <= 1e-12 * max(1.0, abs(max(all_of)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _from_mean(values: Values) -> list[list[float]]:
    middle = _mean([_mean(steps) for steps in values])
    return [[value - middle for value in steps] for steps in values]


def _standard(values: Values) -> list[list[float]]:
    centred = _from_mean(values)
    spread = math.sqrt(_mean([_mean([value**2 for value in steps]) for steps in centred]))
    return [[value / (spread + EPSILON) for value in steps] for steps in centred]


def _leave_one_out(values: Values) -> list[list[float]]:
    means = [_mean(steps) for steps in values]
    total, others = math.fsum(means), len(means) - 1
    return [
        [value - (total - own) / others for value in steps]
        for steps, own in zip(values, means, strict=True)
    ]


def _maximum_likelihood(values: Values) -> list[list[float]]:
    least = min(value for steps in values for value in steps)
    if least < 0:
        raise ValueError(f"maxrl is made for rewards from 0, and one is {least:g}")
    middle = _mean([_mean(steps) for steps in values])
    return [[value / middle for value in steps] for steps in _from_mean(values)]


BASELINES: dict[str, Callable[[Values], list[list[float]]]] = {
    "mean": _from_mean,
    "std": _standard,
    "leave_one_out": _leave_one_out,
    "maxrl": _maximum_likelihood,
}

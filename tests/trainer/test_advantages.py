"""Baselines against numbers worked out by hand."""

import math

import pytest

from trainer.algorithms.advantages import BASELINES, EPSILON, Baseline, advantages

OUTCOMES = [[1.0], [0.0], [0.0], [1.0], [1.0]]
"""Three of five are right: μ = 0.6, σ = √0.24."""


@pytest.mark.parametrize(
    ("baseline", "right", "wrong"),
    [
        ("mean", 0.4, -0.6),
        ("std", 0.4 / (math.sqrt(0.24) + EPSILON), -0.6 / (math.sqrt(0.24) + EPSILON)),
        ("leave_one_out", 0.5, -0.75),
        ("maxrl", 0.4 / 0.6, -1.0),
    ],
)
def test_outcomes_have_the_papers_advantages(
    baseline: Baseline, right: float, wrong: float
) -> None:
    expected = [[right] if value else [wrong] for (value,) in OUTCOMES]
    for one, wanted in zip(advantages(OUTCOMES, baseline), expected, strict=True):
        assert one == pytest.approx(wanted, rel=1e-12)


def test_maxrl_is_the_mean_over_the_right_answers_less_the_mean_over_all() -> None:
    """Σ a_i g_i / G = Σ_right g_i / K − Σ g_i / G: the estimator with its control variate."""
    scores = [0.3, -1.2, 0.7, 2.0, -0.4]
    found = advantages(OUTCOMES, "maxrl")
    ours = sum(a[0] * g for a, g in zip(found, scores, strict=True)) / 5
    right = [g for (value,), g in zip(OUTCOMES, scores, strict=True) if value]
    assert ours == pytest.approx(sum(right) / 3 - sum(scores) / 5)


@pytest.mark.parametrize("baseline", BASELINES)
def test_a_rollout_counts_once_however_many_steps_it_has(baseline: Baseline) -> None:
    short = advantages([[1.0], [0.0], [0.5]], baseline)
    long = advantages([[1.0] * 7, [0.0], [0.5] * 3], baseline)
    for few, many in zip(short, long, strict=True):
        assert many == pytest.approx(few * len(many), rel=1e-12)


def test_steps_stand_beside_the_mean_of_their_group() -> None:
    # μ = (0.5 + 0.1) / 2 = 0.3
    first, second = advantages([[0.8, 0.2], [0.1]], "mean")
    assert first == pytest.approx([0.5, -0.1]) and second == pytest.approx([-0.2])
    first, second = advantages([[0.8, 0.2], [0.1]], "leave_one_out")
    assert first == pytest.approx([0.7, 0.1]) and second == pytest.approx([-0.4])


@pytest.mark.parametrize("baseline", BASELINES)
def test_where_all_earned_the_same_every_advantage_is_exactly_zero(baseline: Baseline) -> None:
    for value in (0.0, 0.1, 1.0):
        assert advantages([[value] * 3, [value], [value]], baseline) == [[0.0] * 3, [0.0], [0.0]]
    assert advantages([[0.7]], baseline) == [[0.0]]


def test_maxrl_refuses_rewards_below_zero() -> None:
    with pytest.raises(ValueError, match="from 0"):
        advantages([[1.0], [-1.0]], "maxrl")

"""Cohen's kappa against numbers worked out by hand and scikit-learn's; its interval."""

import random

import pytest
from sklearn.metrics import cohen_kappa_score

from environments.judges.agreement import agreement, confusion


def test_kappa_of_a_table_worked_out_by_hand() -> None:
    # Observed agreement (20 + 15) / 50 = 0.7; by chance (25 * 30 + 25 * 20) / 2500 = 0.5.
    found = agreement(((20, 5), (10, 15)))
    assert found.kappa == pytest.approx((0.7 - 0.5) / (1 - 0.5))
    assert found.low is not None and found.high is not None
    assert found.low < 0.4 < found.high


@pytest.mark.parametrize(("labels", "weights"), [(2, None), (3, "linear"), (5, "linear")])
def test_kappa_is_what_an_independent_library_computes(labels: int, weights: str | None) -> None:
    chance = random.Random(labels)
    people = [chance.randrange(labels) for _ in range(60)]
    judge = [one if chance.random() < 0.6 else chance.randrange(labels) for one in people]
    found = agreement(confusion(list(zip(people, judge, strict=True)), labels))
    assert found.kappa == pytest.approx(cohen_kappa_score(people, judge, weights=weights))
    again = agreement(confusion(list(zip(people, judge, strict=True)), labels))
    assert again == found


def test_a_near_miss_weighs_less_than_a_far_one() -> None:
    near = agreement(((10, 5, 0), (0, 10, 0), (0, 5, 10)))
    far = agreement(((10, 0, 5), (0, 10, 0), (5, 0, 10)))
    assert near.kappa and far.kappa and near.kappa > far.kappa


def test_perfect_opposite_and_useless_judges() -> None:
    assert agreement(((20, 0), (0, 20)))[:3] == (1.0, 1.0, 1.0)
    assert agreement(((0, 20), (20, 0))).kappa == pytest.approx(-1.0)
    always = agreement(((0, 20), (0, 20)))
    assert always.kappa == pytest.approx(0.0)


def test_what_has_no_kappa_says_why() -> None:
    same = agreement(((0, 0), (0, 30)))
    assert same.kappa is None and "one label" in (same.reason or "")
    assert agreement(((0, 0), (0, 0))).reason == "nothing was judged by both"
    assert agreement(((1, 0), (0, 1))).low is None  # half of its resamples have one label only

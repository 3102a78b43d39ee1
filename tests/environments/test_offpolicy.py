import random

import numpy as np
import pytest

from environments.offpolicy import Logged, effective, off_policy

OLD, NEW = "p-v0", "p-v1"


def logged(count: int, share: float, *, gain: float, seed: int = 0) -> list[Logged]:
    """Answers of two arms; questions of the slice `hard` earn half, and the new arm is better."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        new = draw.random() < share
        slice = draw.choice(("easy", "hard"))
        rate = (0.6 if slice == "easy" else 0.3) + gain * new
        made.append(
            Logged(f"{number:05d}", NEW if new else OLD, share if new else 1 - share,
                   float(draw.random() < rate), slice)
        )  # fmt: skip
    return made


def test_each_estimator_is_its_formula() -> None:
    rows = [
        Logged("a", NEW, 0.2, 1.0), Logged("b", OLD, 0.8, 0.0), Logged("c", OLD, 0.5, 1.0),
        Logged("d", NEW, 0.5, 0.0),
    ]  # fmt: skip
    found = off_policy(rows, candidate=NEW, champion=OLD, min_effective=0)
    assert found.candidate.ips == pytest.approx((5 * 1 + 2 * 0) / 4)
    assert found.candidate.snips == pytest.approx(5 / 7)
    assert found.candidate.effective == pytest.approx(49 / 29)
    assert found.champion.ips == pytest.approx(2 / 4)
    assert found.champion.snips == pytest.approx(2 / 3.25)
    # a and c are one half, b and d the other; each half's model comes of the other half.
    parts = [0 + 5 * (1 - 0), 1.0, 0.0, 1 + 2 * (0 - 1)]
    assert found.candidate.dr == pytest.approx(sum(parts) / 4)


def test_the_estimates_find_a_difference_that_is_there_and_cover_it() -> None:
    covered = 0
    for seed in range(40):
        found = off_policy(logged(600, 0.3, gain=0.1, seed=seed), candidate=NEW, champion=OLD)
        assert found.low is not None and found.high is not None
        covered += found.low <= 0.1 <= found.high
    assert covered >= 34  # of 40 at 95%: fewer has a chance of a thousandth


def test_knowing_the_slices_makes_the_doubly_robust_one_narrower() -> None:
    plain, robust = [], []
    for seed in range(60):
        found = off_policy(
            logged(300, 0.2, gain=0.0, seed=seed),
            candidate=NEW,
            champion=OLD,
            min_effective=1e9,
        )
        assert found.candidate.ips is not None and found.candidate.dr is not None
        plain.append(found.candidate.ips)
        robust.append(found.candidate.dr)
    assert np.std(robust) < 0.9 * np.std(plain)


def test_too_little_evidence_is_no_number() -> None:
    found = off_policy(logged(200, 0.05, gain=0.5), candidate=NEW, champion=OLD)
    assert found.difference is None and found.low is None
    assert found.reason is not None and found.reason.startswith("cannot tell")
    nothing = off_policy([], candidate=NEW, champion=OLD)
    assert nothing.candidate.ips is None and nothing.reason is not None
    alone = off_policy(logged(90, 0.0, gain=0.0), candidate=NEW, champion=OLD)
    assert alone.candidate.answers == 0 and alone.difference is None


def test_uneven_weights_are_worth_fewer_answers_than_they_are() -> None:
    assert effective([2.0] * 10) == pytest.approx(10)
    assert effective([10.0, *[1.0] * 10]) == pytest.approx(400 / 110)


def test_the_order_of_what_was_logged_changes_nothing() -> None:
    rows = logged(300, 0.4, gain=0.1)
    assert off_policy(rows, candidate=NEW, champion=OLD) == off_policy(
        rows[::-1], candidate=NEW, champion=OLD
    )

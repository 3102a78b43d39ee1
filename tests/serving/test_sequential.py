"""Always-valid tests: what they promise, counted by simulation and against exact sums."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.sequential import Counts, Rates, Unit, difference, upper_rate

ALPHA = 0.05


def units(champion: float, challenger: float, share: float, count: int, seed: int) -> list[Unit]:
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        arm = draw.random() < share
        made.append(Unit(arm, share, float(draw.random() < (challenger if arm else champion))))
    return made


def watched(champion: float, challenger: float, slack: float, count: int, seed: int) -> int | None:
    """After how many answers of both arms the challenger is found worse, looked at after each of
    its own; None = never."""
    draw, rates = random.Random(seed), Rates()
    for number in range(1, count + 1):
        if draw.random() < 0.1:
            rates.challenger.add(draw.random() < challenger)
            if rates.log_evidence(slack, ALPHA) >= 0:
                return number
        else:
            rates.champion.add(draw.random() < champion)
    return None


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.floats(0.01, 0.9), st.floats(0.001, 0.5))
def test_more_events_or_a_lower_bound_are_more_evidence(
    x: int, rest: int, rate: float, slack: float
) -> None:
    def evidence(events: int, allowed: float) -> float:
        return Rates(Counts(200, 10), Counts(x + rest + 1, events)).log_evidence(allowed, ALPHA)

    assert evidence(x + 1, slack) >= evidence(x, slack)
    assert evidence(x, slack) >= evidence(x, slack + rate)


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_the_capital_is_an_e_process_to_the_last_digit(rate: float) -> None:
    """Its expectation after n answers, summed over all outcomes, is 1 at the bound itself."""
    from serving.sequential import _log_capital

    for n in (1, 7, 30):
        total = sum(
            math.comb(n, x) * rate**x * (1 - rate) ** (n - x) * math.exp(_log_capital(x, n, rate))
            for x in range(n + 1)
        )
        assert total == pytest.approx(1, abs=1e-9)


def test_an_upper_bound_is_above_the_share_and_closes_in_on_it() -> None:
    assert upper_rate(Counts(0, 0), ALPHA) == 1
    bounds = [upper_rate(Counts(n, n // 20), ALPHA) for n in (20, 200, 2000, 20000)]
    assert bounds == sorted(bounds, reverse=True) and 0.05 < bounds[-1] < 0.06


def test_an_outage_of_the_challenger_is_found_within_some_answers() -> None:
    found = [watched(0.01, 1.0, 0.02, 1000, seed) for seed in range(20)]
    assert all(one is not None and one < 150 for one in found), found


def test_a_challenger_within_the_slack_is_hardly_ever_called_worse() -> None:
    called = [watched(0.03, 0.05, 0.02, 1500, seed) for seed in range(60)]
    assert sum(one is not None for one in called) <= 4  # 3 are expected at the very most


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.1, 0.5]), st.integers(1, 300))
def test_the_interval_only_closes_in_and_holds_at_every_look(
    seed: int, share: float, count: int
) -> None:
    last, curve = difference(units(0.5, 0.6, share, count, seed), 0.95, grid=101)
    assert last == curve[-1] and last.units == count
    for before, after in itertools.pairwise(curve):
        assert -1 <= before.low <= after.low + 1e-12 and after.high <= before.high + 1e-12 <= 1.1


def test_a_look_does_not_depend_on_what_comes_after_it() -> None:
    all_of_them = units(0.4, 0.7, 0.2, 400, 3)
    _, curve = difference(all_of_them, 0.95)
    for stop in (1, 50, 399):
        now, _ = difference(all_of_them[:stop], 0.95)
        assert now == curve[stop - 1]


def test_it_covers_the_truth_and_finds_a_regression() -> None:
    """40 canaries each, looked at after every conversation: nothing false, everything found."""
    held = found = 0
    for seed in range(40):
        last, _ = difference(units(0.7, 0.7, 0.2, 1500, seed), 0.95, grid=201)
        held += last.low <= 0 <= last.high
        last, _ = difference(units(0.8, 0.6, 0.2, 1500, seed), 0.95, grid=201)
        found += last.high < 0
    assert held >= 38 and found >= 38


def test_nothing_and_one_arm_alone_say_nothing() -> None:
    assert difference([], 0.95) == ((0, None, -1.0, 1.0), [])
    last, _ = difference([Unit(False, 0.1, 1.0)] * 5, 0.95)
    assert last.difference is None and last.low < 0 < last.high


def test_rewards_outside_0_to_1_count_as_their_nearer_end() -> None:
    far = [one._replace(reward=one.reward * 10 - 3) for one in units(0.5, 0.5, 0.5, 50, 1)]
    assert difference(far, 0.95) == difference(units(0.5, 0.5, 0.5, 50, 1), 0.95)

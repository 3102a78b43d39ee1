"""The cell rate algorithm against what a bucket that refills evenly would let pass."""

from hypothesis import given, settings
from hypothesis import strategies as st

from serving import rates
from serving.rates import MINUTE

SECOND = 10**9


def test_a_minutes_worth_passes_at_once_then_one_every_so_often() -> None:
    tat, now = 0, 1000 * SECOND
    for _ in range(6):
        tat, wait = rates.pass_by(tat, now, limit=6, cost=1)
        assert wait == 0
    assert rates.left(tat, now, 6) == rates.Left(limit=6, remaining=0, reset_ns=MINUTE)
    assert rates.pass_by(tat, now, 6, 1)[1] == 10 * SECOND
    assert rates.pass_by(tat, now + 10 * SECOND, 6, 1)[1] == 0
    assert rates.left(tat, now + 25 * SECOND, 6).remaining == 2


def test_one_larger_than_the_limit_takes_all_of_it_and_is_not_refused_for_ever() -> None:
    tat, wait = rates.pass_by(0, SECOND, limit=100, cost=10**9)
    assert (tat, wait) == (SECOND + MINUTE, 0)


def test_what_was_not_spent_comes_back_and_a_debt_is_paid_later() -> None:
    now = 50 * SECOND
    tat, _ = rates.pass_by(0, now, limit=60, cost=50)
    assert rates.left(rates.correct(tat, now, 60, 50, 20), now, 60).remaining == 40
    owing = rates.correct(tat, now, 60, 50, 90)
    assert rates.pass_by(owing, now, 60, 1)[1] == 31 * SECOND


def test_a_clock_that_was_set_back_locks_out_for_two_minutes_at_most() -> None:
    assert rates.pass_by(10**18, SECOND, limit=1, cost=1)[1] <= 2 * MINUTE


@settings(deadline=None)
@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=60))
def test_it_lets_pass_what_a_bucket_of_that_rate_would(
    limit: int, asks: list[tuple[int, int]]
) -> None:
    tat, now, level = 0, 10**18, float(limit)
    for seconds, cost in asks:
        now += seconds * SECOND
        level = min(limit, level + seconds * limit / 60)
        after, wait = rates.pass_by(tat, now, limit, cost)
        cost = min(cost, limit)
        if abs(level - cost) > 1e-6:  # at the edge rounding decides
            assert (wait == 0) == (level >= cost)
        if wait == 0:
            tat, level = after, level - cost

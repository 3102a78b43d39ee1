"""pass@k and pass^k against counting every subset by hand."""

from itertools import combinations, product

import pytest

from environments.passing import Tried, pass_all, pass_at, passing


@pytest.mark.parametrize(("n", "k"), [(n, k) for n in range(1, 7) for k in range(1, n + 1)])
def test_both_are_the_share_of_all_subsets_of_k(n: int, k: int) -> None:
    for outcomes in product([0, 1], repeat=n):
        subsets = list(combinations(outcomes, k))
        some = sum(any(one) for one in subsets) / len(subsets)
        every = sum(all(one) for one in subsets) / len(subsets)
        assert pass_at(n, sum(outcomes), k) == pytest.approx(some)
        assert pass_all(n, sum(outcomes), k) == pytest.approx(every)


def test_a_problem_with_too_few_graded_attempts_says_nothing() -> None:
    found = passing([Tried(4, 2), Tried(1, 0)], 2)
    assert found.problems == 1
    assert found.any == pytest.approx(1 - 1 / 6)
    assert found.all == pytest.approx(1 / 6)
    assert passing([Tried(1, 1)], 2) == (2, None, None, 0)

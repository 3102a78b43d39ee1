"""The sample that a judge is asked about: the same again, of every slice and day, evenly spent."""

from collections import Counter

from environments.judges.sampling import Candidate, chosen

MANY = [
    Candidate(f"t{number}", "rare" if number % 50 == 0 else "usual", f"day {number % 7}")
    for number in range(3500)
]


def test_the_same_traces_are_chosen_again_whatever_came_since() -> None:
    first = chosen(MANY, 0.1)
    assert chosen(list(reversed(MANY)), 0.1) == first
    assert len(first) == len(set(first)) and 300 < len(first) < 400
    more = [Candidate(f"new {number}", "usual", "day 7") for number in range(500)]
    assert set(first) <= set(chosen(MANY + more, 0.1))
    assert set(first) <= set(chosen(MANY, 0.2))


def test_each_slice_of_each_day_is_in_the_sample() -> None:
    strata = {one.id: one[1:] for one in MANY}
    assert {strata[one] for one in chosen(MANY, 0.001)} == set(strata.values())
    assert chosen(MANY, 0) == [] and len(chosen(MANY, 1)) == len(MANY)
    assert chosen([], 0.5) == []


def test_a_budget_that_ends_early_has_gone_evenly_over_days() -> None:
    days = {one.id: one.day for one in MANY}
    order = chosen(MANY, 0.5)
    early = Counter(days[one] for one in order[: len(order) // 4])
    assert len(early) == 7 and max(early.values()) < 1.3 * min(early.values())

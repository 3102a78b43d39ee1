"""Fair queueing: what projects are served while they all want the engine."""

from collections import Counter

import pytest

from serving.fair import FairQueue


class Counters:
    """Implements `fair.Served`."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def served(self, project: str) -> float:
        return self.of[project]

    def serve(self, project: str, tokens: float) -> None:
        self.of[project] += tokens  # type: ignore[assignment]


def share_out(
    costs: dict[str, int], weights: dict[str, float] | None = None, *, rounds: int = 4000
) -> Counter[str]:
    """Tokens served while every project always has requests waiting."""
    queue: FairQueue[str] = FairQueue(Counters())
    served: Counter[str] = Counter()
    for project in costs:
        queue.come(project)
        queue.push(project, project)
    for _ in range(rounds):
        project = queue.pop()
        assert project is not None
        served[project] += costs[project]
        queue.charge(project, costs[project], (weights or {}).get(project, 1.0))
        queue.push(project, project)
    return served


def test_who_asks_for_long_answers_gets_no_more_tokens_than_who_asks_for_short_ones() -> None:
    served = share_out({"long": 500, "short": 7, "middle": 60})
    assert max(served.values()) / min(served.values()) < 1.05


def test_twice_the_weight_is_twice_the_tokens() -> None:
    served = share_out({"a": 30, "b": 100}, {"a": 1.0, "b": 2.0})
    assert served["b"] / served["a"] == pytest.approx(2.0, rel=0.02)


def test_many_waiting_requests_of_one_project_hold_up_another_ones_first_by_one_at_most() -> None:
    queue: FairQueue[str] = FairQueue(Counters())
    for number in range(100):
        queue.come("greedy")
        queue.push("greedy", f"greedy {number}")
    for _ in range(10):
        assert queue.pop()
        queue.charge("greedy", 50, 1.0)
    queue.come("modest")
    queue.push("modest", "modest")
    queue.charge("greedy", 50, 1.0)
    assert queue.pop() == "modest"


def test_who_was_away_saved_nothing_up() -> None:
    counters = Counters()
    queue: FairQueue[str] = FairQueue(counters)
    queue.come("steady")
    queue.charge("steady", 10_000, 1.0)
    queue.come("back")
    assert counters.of["back"] == 10_000
    queue.leave("back")
    queue.leave("steady")
    queue.come("new")
    assert counters.of["new"] == 10_000


def test_those_of_one_project_keep_their_order_and_who_leaves_is_not_given_a_turn() -> None:
    queue: FairQueue[int] = FairQueue(Counters())
    for number in range(4):
        queue.come("a")
        queue.push("a", number)
    queue.withdraw("a", 1)
    queue.withdraw("a", 1)
    assert (queue.waiting("a"), len(queue)) == (3, 3)
    assert [queue.pop() for _ in range(4)] == [0, 2, 3, None]

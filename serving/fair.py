"""Whose turn is next among projects that want one engine: the virtual token counter.

(Sheng et al. 2024, "Fairness in Serving Large Language Models", OSDI, algorithm 2, its weighted
form.) Each project has a counter of the tokens that it was served, divided by its weight; next is
the first request of the project whose counter is the smallest. Who comes back after a pause starts
at the smallest counter of those that are there, so that idleness is not saved up. While two
projects both wait, what they are served differs by no more than a few requests, whatever each asks.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Served(Protocol):
    """The counters: a dictionary's in tests, those of all gateway processes in a server."""

    def served(self, project: str) -> float: ...

    def serve(self, project: str, tokens: float) -> None: ...


class FairQueue(Generic[T]):
    """Requests that wait, each project's in order. Counts who is there: waiting or in work."""

    def __init__(self, counters: Served) -> None:
        self._counters = counters
        self._lanes: dict[str, deque[T]] = {}
        self._there: dict[str, int] = {}
        self._left = 0.0
        """Counter of the one who left last, when all had left."""
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def waiting(self, project: str) -> int:
        return len(self._lanes.get(project, ()))

    def come(self, project: str) -> None:
        """A request of it is there, until it leaves."""
        if project not in self._there:
            least = min(map(self._counters.served, self._there), default=self._left)
            behind = least - self._counters.served(project)
            if behind > 0:
                self._counters.serve(project, behind)
        self._there[project] = self._there.get(project, 0) + 1

    def leave(self, project: str) -> None:
        self._there[project] -= 1
        if not self._there[project]:
            del self._there[project]
            self._left = self._counters.served(project)

    def charge(self, project: str, tokens: float, weight: float) -> None:
        """It was served `tokens`; below 0 gives back."""
        self._counters.serve(project, tokens / weight)

    def push(self, project: str, item: T) -> None:
        self._lanes.setdefault(project, deque()).append(item)
        self._waiting += 1

    def pop(self) -> T | None:
        """The next one; None = nobody waits. Charge it before the next `pop`."""
        if not self._lanes:
            return None
        project = min(self._lanes, key=self._counters.served)
        item = self._lanes[project].popleft()
        self._shrink(project)
        return item

    def withdraw(self, project: str, item: T) -> None:
        """It waits no more, where it still did."""
        if item in self._lanes.get(project, ()):
            self._lanes[project].remove(item)
            self._shrink(project)

    def _shrink(self, project: str) -> None:
        self._waiting -= 1
        if not self._lanes[project]:
            del self._lanes[project]

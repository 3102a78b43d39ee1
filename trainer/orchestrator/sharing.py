"""One engine's slots, shared by the runs that sample from it.

Max-min fair: a free slot goes to the run that wants one and holds the fewest for its weight, so a
run that floods the engine leaves the others their share, and what one does not want the others
have. Nothing is taken back: a run that comes later gets its share as rollouts end. Tokens are
accounted run by run.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Account:
    weight: float
    woken: Callable[[], None]
    """Called when a slot may be had."""
    held: int = 0
    wants: bool = False


class Slots:
    """All in one event loop: nothing here waits, and nothing locks."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        """Rollouts together, at most, ever."""
        self.limit = ceiling
        """And now."""
        self.runs: dict[str, Account] = {}
        self.tokens: Counter[str] = Counter()
        """Run -> sampled so far; it stays when the run has left."""

    @property
    def held(self) -> int:
        return sum(one.held for one in self.runs.values())

    def join(self, run: str, woken: Callable[[], None], weight: float = 1.0) -> None:
        if run in self.runs:
            raise ValueError(f"a run {run} already samples from this engine")
        self.runs[run] = Account(weight, woken)

    def leave(self, run: str) -> None:
        del self.runs[run]
        self._wake()

    def want(self, run: str, wants: bool) -> None:
        """Whether it would start a rollout if it had a slot. One that wants none is not waited
        for."""
        changed = self.runs[run].wants != wants
        self.runs[run].wants = wants
        if changed and not wants:
            self._wake()

    def take(self, run: str) -> bool:
        if self.held >= self.limit:
            return False
        mine = self.runs[run]
        share = mine.held / mine.weight
        others = (one for one in self.runs.values() if one is not mine and one.wants)
        if any(one.held / one.weight < share for one in others):
            return False
        mine.held += 1
        return True

    def free(self, run: str, tokens: int = 0) -> None:
        self.runs[run].held -= 1
        self.tokens[run] += tokens
        self._wake()

    def resize(self, limit: int) -> None:
        grown = limit > self.limit
        self.limit = limit
        if grown:
            self._wake()

    def _wake(self) -> None:
        for one in self.runs.values():
            if one.wants:
                one.woken()

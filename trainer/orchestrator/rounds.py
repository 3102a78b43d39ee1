"""One environment's problems in rounds: each once a round, in an order of the seed.

With a curriculum a problem waits while its pass rate lies outside the band; a share of picks goes
to those who wait, who was met longest ago first, and a round ends when all inside were met. Where
all wait, they are met in turn. A problem that was never met is inside. A pure state machine: the
same picks and rates in the same order give the same picks.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from flywheel.ids import seed_of
from flywheel.records import Problem
from flywheel.train_section import CurriculumSection

LATEST = 0.5
"""What a problem's latest visit counts in its pass rate, beside all before: the policy moves on."""


class Rounds:
    def __init__(
        self,
        problems: Sequence[Problem],
        *,
        seed: int,
        curriculum: CurriculumSection | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        """`rates`: problem id -> pass rate before the first pick."""
        self.problems = {problem.id: problem for problem in problems}
        self.rates = {id: rate for id, rate in (rates or {}).items() if id in self.problems}
        self.met = dict.fromkeys(self.problems, 0)
        """Problem id -> how often it was picked."""
        self._seed, self._curriculum = seed, curriculum
        self._picks = self._round = 0
        self._last: dict[str, int] = {}
        self._inside, self._waiting = deque[str](), deque[str]()
        self._all_wait = False

    def pick(self) -> Problem:
        chosen = self._chosen()
        self._last[chosen] = self._picks
        self._picks += 1
        self.met[chosen] += 1
        return self.problems[chosen]

    def learnt(self, problem_id: str, rate: float) -> None:
        """What a visit to the problem was worth: the share of its rollouts that were right."""
        before = self.rates.get(problem_id)
        known = rate if before is None else before + LATEST * (rate - before)
        self.rates[problem_id] = known

    def _chosen(self) -> str:
        while True:
            if not self._inside and not (self._all_wait and self._waiting):
                self._begin()
            if not self._inside or (self._waiting and self._draw() < self._revisit):
                return self._waiting.popleft()
            first = self._inside.popleft()
            if self._fits(first):
                return first
            self._waiting.append(first)

    def _begin(self) -> None:
        """A new round. Their hashes shuffle the problems, whatever order they were given in."""
        self._round += 1
        order = sorted(self.problems, key=lambda id: seed_of(self._seed, self._round, id))
        self._inside = deque(id for id in order if self._fits(id))
        waiting = (id for id in order if not self._fits(id))
        self._waiting = deque(sorted(waiting, key=lambda id: self._last.get(id, -1)))
        self._all_wait = not self._inside

    def _fits(self, problem_id: str) -> bool:
        rate = self.rates.get(problem_id)
        band = self._curriculum
        return band is None or rate is None or band.low <= rate <= band.high

    @property
    def _revisit(self) -> float:
        return self._curriculum.revisit if self._curriculum else 0.0

    def _draw(self) -> float:
        return seed_of(self._seed, "revisit", self._picks) / 2**31

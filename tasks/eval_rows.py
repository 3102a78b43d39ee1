"""The state of an evaluation while it runs: which attempts are done, graded, and in the store.

Enter entries, old ones from the log or new ones as they are written. Leaves what is still to do.
Invariant: the same entries in the same order give the same state, so that a process that was
killed changes nothing for the next one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from flywheel.records import Problem
from tasks.eval_log import Entry, Played, Sent
from tasks.eval_row import Row, graded_row, row_of

Key = tuple[str, int]
"""A problem's id and which attempt at it."""
Place = tuple[int, int]


class Pair(NamedTuple):
    """Where an episode and its grades stand in the log."""

    played: Place
    graded: Place


class Rows:
    def __init__(
        self, problems: Sequence[Problem], samples: int, *, bonuses: frozenset[str]
    ) -> None:
        """
        Args:
            bonuses: names of group rewards; where there are any, an episode is graded only once all
                attempts at its problem have ended.
        """
        self.problems: Mapping[str, Problem] = {one.id: one for one in problems}
        self.samples, self.bonuses = samples, bonuses
        self.whole_groups = bool(bonuses)
        self.rows: dict[Key, Row] = {}
        self.graded: list[Key] = []
        """In the order in which their grades were written."""
        self.sent = 0
        """How many of `graded` are in the store's inbox."""
        self._handed: set[Key] = set()
        """Handed out to be graded."""

    @property
    def planned(self) -> int:
        return len(self.problems) * self.samples

    @property
    def done(self) -> int:
        """Episodes that ended."""
        return sum(row.failed is None for row in self.rows.values())

    def take(self, entry: Entry, place: Place) -> None:
        """One line of the log, in its order."""
        if isinstance(entry, Sent):
            self.sent = entry.graded
            return
        key = (entry.problem, entry.attempt)
        if isinstance(entry, Played):
            problem = self.problems.get(entry.problem)
            row = row_of(entry.trace, problem, entry.attempt, entry.failed)
            self.rows[key] = replace(row, place=place)
        else:
            row = graded_row(self.rows[key], entry.grades, self.bonuses)
            self.rows[key] = replace(row, graded_at=place)
            self.graded.append(key)

    def left(self) -> Iterator[tuple[Problem, int]]:
        """Attempts that no episode has ended for, problem by problem."""
        done = {key for key, row in self.rows.items() if row.failed is None}
        for problem in self.problems.values():
            for attempt in range(self.samples):
                if (problem.id, attempt) not in done:
                    yield problem, attempt

    def ready(self, problem_ids: Iterable[str]) -> list[list[Key]]:
        """Groups of these problems that can be graded now, each once."""
        found = []
        for problem in dict.fromkeys(problem_ids):
            ended = self._group(problem)
            new = [key for key in ended if self._waits(key) and key not in self._handed]
            if new and (not self.whole_groups or len(ended) == self.samples):
                found.append(ended if self.whole_groups else new)
                self._handed.update(new)
        return found

    def incomplete(self) -> list[list[Key]]:
        """What is not graded since its group is not whole; at the end it is graded as it is."""
        problems = {key[0] for key in self.rows if self._waits(key)}
        return [group for one in sorted(problems) if (group := self._group(one))]

    def unsent(self, most: int) -> list[Pair]:
        """The next graded episodes that the store has not got."""
        keys = self.graded[self.sent : self.sent + most]
        rows = [self.rows[key] for key in keys]
        return [Pair(row.place, row.graded_at) for row in rows if row.graded_at]

    def _group(self, problem: str) -> list[Key]:
        """The attempts at a problem that have ended."""
        keys = [(problem, attempt) for attempt in range(self.samples)]
        return [key for key in keys if key in self.rows and self.rows[key].failed is None]

    def _waits(self, key: Key) -> bool:
        return self.rows[key].failed is None and self.rows[key].graded_at is None

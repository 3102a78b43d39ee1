"""Who is decoded with whom: the live cohort of an adapter, and gangs.

A live cohort takes newcomers between steps and lets finished rows go. A gang is a fixed set of rows
that nobody joins: it is sorted by what its rows ask for and cut into batches by a fixed rule, so
the same gang gives the same bits whenever it runs. Both are generators that yield between passes.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from serving.engines.embedded_batch import (
    CHUNK,
    Group,
    Row,
    compute_segment,
    drop,
    start_rows,
    step,
)
from serving.engines.embedded_cache import ROOM, WORTH, Prefixes, Segment, common_length
from serving.engines.embedded_guess import Guessing
from serving.engines.embedded_model import Model

Turns = Generator[None, None, None]
T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """What the engine may hold at one time."""

    context: int = 2048
    """Tokens of prompt and answer together."""
    rows: int = 64
    """Rows decoded together, at most."""
    queue: int = 256
    """Rows that may wait; more are refused."""
    memory: int = 384 * 2**20
    """Bytes of keys and values: half for gangs, three eighths for live rows, the rest for
    prefixes. One row of full length is always let in."""
    gang_wait_s: float = 60.0
    """How long a gang waits for its next request."""


class Cohort:
    """The live rows of one adapter."""

    def __init__(
        self,
        model: Model,
        adapter: str,
        prefixes: Prefixes,
        bounds: Bounds,
        beside: Callable[[], int] = lambda: 0,
        guessing: Guessing | None = None,
    ) -> None:
        """`beside`: tokens that the rows of other adapters hold memory for."""
        self.model, self.adapter, self.guessing = model, adapter, guessing
        self.prefixes, self.bounds, self.beside = prefixes, bounds, beside
        self.budget = bounds.memory * 3 // 8 // model.shape.bytes_per_token
        self.waiting: deque[Row] = deque()
        self.groups: list[Group] = []
        self.entering: list[Row] = []

    @property
    def rows(self) -> list[Row]:
        return [*(row for group in self.groups for row in group.rows), *self.entering]

    @property
    def held(self) -> int:
        """Tokens that its rows hold memory for."""
        return sum(group.slots.tokens for group in self.groups)

    def run(self) -> Turns:
        """Until nothing is left to do."""
        while self.waiting or self.groups:
            self._let_go()
            yield from self._admit()
            if self.groups:
                self._step()
                yield

    def fail(self, reason: str) -> None:
        """Ends all its rows with an error."""
        for row in dict.fromkeys([*self.rows, *self.waiting]):
            row.deliver(None, reason)
        self.waiting.clear()
        self.groups, self.entering = [], []

    def _let_go(self) -> None:
        for group in self.groups:
            drop(group, lambda row: row.abandoned)
        self.groups = [group for group in self.groups if group.rows]

    def _step(self) -> None:
        self._preempt()
        step(self.model, self.adapter, self.groups, self.guessing)
        self.groups = [group for group in self.groups if group.rows]

    def _admit(self) -> Turns:
        """Prefills those who wait and fit, while the others' decoding goes on between passes."""
        while some := self._next_in_line():
            self.entering = some
            segments = yield from self._segments(some)
            for segment in dict.fromkeys(segments):
                rows = [row for row, own in zip(some, segments, strict=True) if own is segment]
                entering = start_rows(self.model, self.adapter, segment, rows)
                group = yield from self._beside(entering)
                self._merge(group)
            self.entering = []

    def _beside(self, work: Generator[None, None, T]) -> Generator[None, None, T]:
        """Drives `work`, with a step of the running rows after each of its passes."""
        while True:
            try:
                next(work)
            except StopIteration as done:
                value: T = done.value
                return value
            yield
            if self.groups:
                self._step()
                yield

    def _next_in_line(self) -> list[Row]:
        """As many as one chunk of prefill and the budget take."""
        some: list[Row] = []
        tokens = 0
        while self.waiting and len(self.rows) + len(some) < self.bounds.rows:
            row = self.waiting[0]
            if row.abandoned:
                self.waiting.popleft()
                continue
            tokens += len(row.prompt)
            # Without a known prefix every row counts whole: the budget errs on the safe side.
            known = self.prefixes.longest(self.adapter, row.prompt)
            own = len(row.prompt) + len(row.tokens) - (known.length if known else 0) + ROOM
            crowded = self._held(extra=(len(some) + 1) * own) > self.budget
            if (some and tokens > 4 * CHUNK) or (crowded and (some or self.groups)):
                break
            some.append(self.waiting.popleft())
        return some

    def _segments(self, rows: Sequence[Row]) -> Generator[None, None, list[Segment | None]]:
        for prompt in dict.fromkeys(row.prompt for row in rows):
            ids = self.prefixes.worth_keeping(self.adapter, prompt)
            if ids is not None:
                work = compute_segment(self.model, self.adapter, ids)
                segment = yield from self._beside(work)
                self.prefixes.put(self.adapter, segment)
        return [self.prefixes.longest(self.adapter, row.prompt) for row in rows]

    def _merge(self, group: Group) -> None:
        if not group.rows:
            return
        for other in self.groups:
            if other.segment is group.segment:
                other.slots.append(group.slots, range(len(group.rows)))
                other.rows += group.rows
                return
        self.groups.append(group)

    def _held(self, extra: int = 0) -> int:
        return self.held + self.beside() + extra

    def _preempt(self) -> None:
        """Sends the youngest rows back to wait while the answers outgrow the budget."""
        while sum(len(group.rows) for group in self.groups) > 1 and self._held() > self.budget:
            group = self.groups[-1]
            youngest = group.rows[-1]
            drop(group, lambda row: row is youngest)  # noqa: B023
            group.slots.fit()
            self.waiting.appendleft(youngest)
            self.groups = [group for group in self.groups if group.rows]


def run_gang(
    model: Model, adapter: str, rows: Sequence[Row], prefixes: Prefixes, bounds: Bounds
) -> Turns:
    """Decodes `rows`, all of one adapter, as batches that depend on `rows` alone."""
    ordered = sorted(rows, key=lambda row: row.order)
    shared = common_length([row.prompt for row in ordered])
    segment = None
    if shared >= WORTH:
        ids = ordered[0].prompt[:shared]
        segment = prefixes.get(adapter, ids)
        if segment is None:
            segment = yield from compute_segment(model, adapter, ids)
            prefixes.put(adapter, segment)
    offset = segment.length if segment else 0
    budget = bounds.memory // 2 // model.shape.bytes_per_token
    for batch in _batches(ordered, offset, budget, bounds.rows):
        group = yield from start_rows(model, adapter, segment, batch)
        while group.rows:
            if all(row.abandoned for row in rows):
                return
            step(model, adapter, [group])
            yield


def _batches(rows: Sequence[Row], offset: int, budget: int, most: int) -> list[list[Row]]:
    """Neighbours that fit `budget` tokens even if every answer becomes as long as it may."""
    batches: list[list[Row]] = [[]]
    longest = 0
    for row in rows:
        own = len(row.prompt) - offset + row.max_tokens
        longest = max(longest, own)
        if batches[-1] and (len(batches[-1]) >= most or longest * (len(batches[-1]) + 1) > budget):
            batches.append([])
            longest = own
        batches[-1].append(row)
    return batches

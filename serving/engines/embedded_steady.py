"""Answers whose bits depend on nothing but their request, whatever else is under way.

A row of a matrix product has the same bits in any product of the same shape, whatever the other
rows hold and wherever it stands; in one of another shape it may not (measured: below 16 rows on one
thread, below 64 on two). So a prompt is prefilled alone, and every step decodes exactly `WIDTH`
rows, idle ones among them where fewer are under way, over whole multiples of `ROOM` tokens. Rows
share no prefix, and none is sent back: each is let in with room for its longest answer.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import torch

from serving.engines.embedded_attention import decoding
from serving.engines.embedded_batch import Group, Row, drop, prefill
from serving.engines.embedded_cache import ROOM, Slots
from serving.engines.embedded_choose import draw
from serving.engines.embedded_cohort import Bounds, Turns
from serving.engines.embedded_model import Model

WIDTH = 32
"""Rows of every step."""
_KEPT = 16
"""Prompts that stay prefilled: the rollouts of one problem come one by one."""


class _Prompt(NamedTuple):
    slots: Slots
    last: torch.Tensor
    """[1, width] the hidden state that the first token comes from."""


class Steady:
    """The steady rows of one adapter; to the sampler the same as its `Cohort`."""

    def __init__(
        self, model: Model, adapter: str, bounds: Bounds, beside: Callable[[], int] = lambda: 0
    ) -> None:
        """`beside`: tokens that the rows of other adapters hold memory for."""
        self.model, self.adapter, self.bounds, self.beside = model, adapter, bounds, beside
        self.budget = bounds.memory * 3 // 8 // model.shape.bytes_per_token
        self.waiting: deque[Row] = deque()
        self.entering: list[Row] = []
        self.groups: list[Group] = []
        self._prompts: OrderedDict[tuple[int, ...], _Prompt] = OrderedDict()
        self._idle = Slots(model.shape)
        self._idle.reserve(WIDTH, 1)

    @property
    def rows(self) -> list[Row]:
        return [*(row for group in self.groups for row in group.rows), *self.entering]

    @property
    def held(self) -> int:
        """Tokens that are set aside for its rows."""
        return sum(map(_longest, self.rows))

    def run(self) -> Turns:
        """Until nothing is left to do."""
        while self.waiting or self.groups:
            for group in self.groups:
                drop(group, lambda row: row.abandoned)
            self._close_up()
            while some := self._next_in_line():
                self.entering = some
                yield from self._enter(some)
                self.entering = []
            for group in self.groups:
                if group.rows:
                    self._step(group)
                    yield

    def fail(self, reason: str) -> None:
        """Ends all its rows with an error."""
        for row in dict.fromkeys([*self.rows, *self.waiting]):
            row.deliver(None, reason)
        self.waiting.clear()
        self.groups, self.entering = [], []

    def _next_in_line(self) -> list[Row]:
        """Those who fit, at most one group."""
        some: list[Row] = []
        held = self.held + self.beside()
        while self.waiting and len(some) < WIDTH:
            row = self.waiting[0]
            if row.abandoned:
                self.waiting.popleft()
                continue
            under_way = len(self.rows) + len(some)
            crowded = under_way >= self.bounds.rows or held + _longest(row) > self.budget
            if crowded and under_way:
                break
            held += _longest(row)
            some.append(self.waiting.popleft())
        return some

    def _enter(self, rows: Sequence[Row]) -> Turns:
        """Prefills what is not prefilled yet, and draws every row's first token."""
        prompts = []
        for row in rows:
            prompts.append((yield from self._prefilled(row.prompt)))
        last = torch.cat([one.last for one in prompts])
        logits = _widened(self.model, last)
        drawn = draw(logits, [row.choosing for row in rows], [row.generator for row in rows])
        for row, prompt, token in zip(rows, prompts, drawn, strict=True):
            if not row.take(token):
                group = self._with_room()
                group.slots.append(prompt.slots, [0])
                group.rows.append(row)

    def _prefilled(self, ids: tuple[int, ...]) -> Generator[None, None, _Prompt]:
        found = self._prompts.pop(ids, None)
        if found is None:
            slots, last = yield from prefill(self.model, self.adapter, None, [ids])
            found = _Prompt(slots, last)
        self._prompts[ids] = found
        while len(self._prompts) > _KEPT:
            self._prompts.popitem(last=False)
        return found

    def _with_room(self) -> Group:
        for group in self.groups:
            if len(group.rows) < WIDTH:
                return group
        self.groups.append(Group(None, Slots(self.model.shape), []))
        return self.groups[-1]

    def _close_up(self) -> None:
        """Groups that have room for one another become one."""
        groups = sorted((group for group in self.groups if group.rows), key=lambda g: len(g.rows))
        while len(groups) > 1 and len(groups[0].rows) + len(groups[1].rows) <= WIDTH:
            smallest = groups.pop(0)
            groups[0].slots.append(smallest.slots, range(len(smallest.rows)))
            groups[0].rows += smallest.rows
        self.groups = groups

    def _step(self, group: Group) -> None:
        """One token for every row of `group`; finished rows leave."""
        rows, slots, idle = group.rows, group.slots, WIDTH - len(group.rows)
        slots.reserve(len(rows), max(slots.lengths) + 1)
        self._idle.lengths = [0] * idle
        parts = [decoding(None, one, one.room) for one in (slots, self._idle) if one.lengths]
        ids = torch.tensor([[row.tokens[-1]] for row in rows] + [[0]] * idle)
        positions = torch.tensor([[length] for length in slots.lengths] + [[0]] * idle)
        hidden = self.model.hidden(self.adapter, ids, positions, parts)[:, -1]
        logits = self.model.logits(hidden)[: len(rows)]
        drawn = iter(draw(logits, [row.choosing for row in rows], [row.generator for row in rows]))
        slots.lengths = [length + 1 for length in slots.lengths]
        drop(group, lambda row: row.take(next(drawn)))


def _longest(row: Row) -> int:
    return len(row.prompt) + row.max_tokens + ROOM


def _widened(model: Model, hidden: torch.Tensor) -> torch.Tensor:
    """Logits of at most `WIDTH` hidden states, computed as `WIDTH`."""
    wide = torch.zeros(WIDTH, hidden.shape[-1])
    wide[: len(hidden)] = hidden
    return model.logits(wide)[: len(hidden)]

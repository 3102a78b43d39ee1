"""Key and value caches: rows that grow (`Slots`) and prefixes that rows share (`Segment`).

A row's own tokens lie at the left of its slot, so rows of different lengths need no padding; what a
whole group has in common lies once, in a segment. A segment's bits depend on its ids and adapter
alone: it is computed alone, from the first token.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

ROOM = 32
"""Slots grow by this many tokens at a time."""
SEEN = 32
"""How many recent prompts of an adapter are looked at for a prefix worth keeping."""
WORTH = 32
"""A prefix is kept only if it saves at least this many tokens."""


@dataclass(frozen=True)
class Shape:
    """What one token's keys and values look like."""

    layers: int
    heads: int
    """Key and value heads."""
    dim: int

    @property
    def bytes_per_token(self) -> int:
        return 2 * 4 * self.layers * self.heads * self.dim


@dataclass(frozen=True, eq=False)
class Segment:
    ids: tuple[int, ...]
    keys: tuple[torch.Tensor, ...]
    """One a layer, [heads, tokens, dim]."""
    values: tuple[torch.Tensor, ...]

    @property
    def length(self) -> int:
        return len(self.ids)


class Slots:
    """Rows of keys and values, one tensor a layer: [rows, heads, room, dim]. `lengths` says how
    many tokens of each row are filled, at its left."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.lengths: list[int] = []
        self.room = 0
        self._rows = 0
        empty = torch.empty(0, shape.heads, 0, shape.dim)
        self.keys = [empty] * shape.layers
        self.values = [empty] * shape.layers

    @property
    def tokens(self) -> int:
        """Tokens that memory is held for."""
        return self._rows * self.room

    def reserve(self, rows: int, length: int) -> None:
        """Makes place for `rows` rows of `length` tokens; what is there stays."""
        room = max(self.room, -(-length // ROOM) * ROOM)
        rows = max(self._rows, rows)
        if (rows, room) == (self._rows, self.room):
            return
        used, filled = len(self.lengths), max(self.lengths, default=0)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                new = torch.zeros(rows, self.shape.heads, room, self.shape.dim)
                new[:used, :, :filled] = old[:used, :, :filled]
                tensors[layer] = new
        self._rows, self.room = rows, room

    def add(self, lengths: Sequence[int]) -> None:
        """Opens rows at the end; whoever calls fills them."""
        self.reserve(len(self.lengths) + len(lengths), max(lengths, default=0))
        self.lengths.extend(lengths)

    def append(self, other: "Slots", picks: Sequence[int]) -> None:
        """Copies rows `picks` of `other` to the end; one may be picked many times."""
        first = len(self.lengths)
        lengths = [other.lengths[pick] for pick in picks]
        self.add(lengths)
        index, length = torch.tensor(picks), max(lengths)
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            for layer in range(self.shape.layers):
                mine[layer][first : len(self.lengths), :, :length] = theirs[layer][
                    index, :, :length
                ]

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows but `rows` (ascending), which move together."""
        for target, source in enumerate(rows):
            if target == source:
                continue
            length = self.lengths[source]
            for tensors in (self.keys, self.values):
                for tensor in tensors:
                    tensor[target, :, :length] = tensor[source, :, :length]
        self.lengths = [self.lengths[row] for row in rows]

    def shrink(self) -> None:
        """Gives back memory once three quarters of it are idle."""
        if self._rows >= 8 and len(self.lengths) * 4 <= self._rows:
            self.fit()

    def fit(self) -> None:
        """Holds no more memory than its rows need."""
        kept = Slots(self.shape)
        if self.lengths:
            kept.append(self, range(len(self.lengths)))
        self.keys, self.values = kept.keys, kept.values
        self._rows, self.room = kept._rows, kept.room

    def segment(self, ids: tuple[int, ...]) -> Segment:
        """The first row as a prefix to share."""
        keys, values = (
            tuple(tensor[0, :, : len(ids)].contiguous() for tensor in tensors)
            for tensors in (self.keys, self.values)
        )
        return Segment(ids, keys, values)


def common_length(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many leading tokens all `prompts` share, leaving each at least one of its own."""
    shortest = min(len(prompt) for prompt in prompts) - 1
    low, high = min(prompts), max(prompts)
    for index in range(shortest):
        if low[index] != high[index]:
            return index
    return shortest


@dataclass
class _Memory:
    segments: "OrderedDict[tuple[int, ...], Segment]" = field(default_factory=OrderedDict)
    seen: "deque[np.ndarray[tuple[int], np.dtype[np.int32]]]" = field(
        default_factory=lambda: deque(maxlen=SEEN)
    )


class Prefixes:
    """Segments by adapter, the least recently used dropped beyond `budget` tokens in all."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._memories: OrderedDict[str, _Memory] = OrderedDict()

    @property
    def tokens(self) -> int:
        return sum(
            segment.length
            for memory in self._memories.values()
            for segment in memory.segments.values()
        )

    def get(self, adapter: str, ids: tuple[int, ...]) -> Segment | None:
        """The segment of exactly `ids`."""
        memory = self._memories.get(adapter)
        if memory is None or ids not in memory.segments:
            return None
        memory.segments.move_to_end(ids)
        self._memories.move_to_end(adapter)
        return memory.segments[ids]

    def longest(self, adapter: str, prompt: tuple[int, ...]) -> Segment | None:
        """The longest segment that `prompt` begins with and goes beyond."""
        memory = self._memories.get(adapter)
        fitting = [
            ids
            for ids in (memory.segments if memory else ())
            if len(ids) < len(prompt) and prompt[: len(ids)] == ids
        ]
        return self.get(adapter, max(fitting, key=len)) if fitting else None

    def worth_keeping(self, adapter: str, prompt: tuple[int, ...]) -> tuple[int, ...] | None:
        """A longer prefix than the longest one kept, once two recent prompts began with it too."""
        memory = self._memories.setdefault(adapter, _Memory())
        mine = np.asarray(prompt, dtype=np.int32)
        shared = sorted((_shared(mine, other) for other in memory.seen), reverse=True)
        memory.seen.append(mine)
        length = min(shared[1] if len(shared) > 1 else 0, len(prompt) - 1)
        known = self.longest(adapter, prompt)
        gain = length - (known.length if known else 0)
        return prompt[:length] if gain >= WORTH and length <= self.budget else None

    def put(self, adapter: str, segment: Segment) -> None:
        if segment.length > self.budget:
            return
        memory = self._memories.setdefault(adapter, _Memory())
        memory.segments[segment.ids] = segment
        self._memories.move_to_end(adapter)
        while self.tokens > self.budget:
            oldest = next(memory for memory in self._memories.values() if memory.segments)
            oldest.segments.popitem(last=False)

    def forget(self, adapter: str) -> None:
        self._memories.pop(adapter, None)


def _shared(
    one: "np.ndarray[tuple[int], np.dtype[np.int32]]",
    other: "np.ndarray[tuple[int], np.dtype[np.int32]]",
) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length

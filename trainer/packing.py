"""Packing: samples become micro-batches, flat sequences in which a shared prefix stands once.

The samples of a micro-batch form a trie by their token ids, laid out depth first. A token sees
exactly its ancestors and itself, and its position is its depth: so every sample has the logprobs
and gradients that it has alone, while a prefix that eight samples share is computed once, not
eight times. A micro-batch holds at most `micro_tokens` tokens, counted as laid out. The result
depends on the samples alone, not on their order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from flywheel.errors import UsageError
from trainer.samples import Sample


class Node(NamedTuple):
    """A run of laid out tokens that the same samples share."""

    size: int
    ancestors: tuple[int, ...]
    """Indices of the nodes before it on its samples' path, root first."""


@dataclass(frozen=True)
class Packed:
    """One micro-batch. Axes: n = tokens laid out, m = trained tokens."""

    samples: tuple[Sample, ...]
    token_ids: tuple[int, ...]
    """[n]"""
    positions: tuple[int, ...]
    """[n] depth in the trie: the token's place in its own sample."""
    nodes: tuple[Node, ...]
    """In the order laid out; a token sees its node's ancestors, and its own node up to itself."""
    sources: tuple[int, ...]
    """[m] the laid out token whose output predicts the trained one."""
    targets: tuple[int, ...]
    """[m] the trained token's id."""
    owners: tuple[int, ...]
    """[m] index into `samples`."""
    places: tuple[int, ...]
    """[m] the trained token's index in its sample."""

    @property
    def sample_tokens(self) -> int:
        """Tokens of all samples, shared prefixes counted each time."""
        return sum(len(sample.token_ids) for sample in self.samples)


def pack(samples: Sequence[Sample], micro_tokens: int) -> list[Packed]:
    """Splits one optimizer step's samples into micro-batches; pairs stay together.

    Raises:
        UsageError: one sample, or one pair, is longer than `micro_tokens`.
    """
    batches: list[Packed] = []
    members: list[Sample] = []
    for unit in _units(samples):
        longest = laid_out(unit)
        if longest > micro_tokens:
            raise UsageError(
                f"row {unit[0].row_id} has {longest} tokens, more than train.micro_tokens = "
                f"{micro_tokens}: raise that, or drop long rows with the length rule"
            )
        if members and laid_out([*members, *unit]) > micro_tokens:
            batches.append(_lay_out(members))
            members = []
        members += unit
    if members:
        batches.append(_lay_out(members))
    return batches


def laid_out(samples: Sequence[Sample]) -> int:
    """Tokens of the samples' trie: what computing them together costs."""
    ordered = sorted(samples, key=_order)
    size = sum(len(sample.token_ids) for sample in ordered)
    for before, after in pairwise(ordered):
        size -= shared_prefix(before.token_ids, after.token_ids)
    return size


def _order(sample: Sample) -> tuple[tuple[int, ...], str, str]:
    """Lexicographic by tokens, so that what shares a prefix is adjacent; ids break ties."""
    return sample.token_ids, sample.row_id, sample.trace_id or ""


def _units(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """What must not be parted: a pair, else a single sample; in the order of their tokens."""
    units: dict[object, list[Sample]] = {}
    for sample in sorted(samples, key=_order):
        units.setdefault(sample.pair_id or object(), []).append(sample)
    yield from units.values()


def shared_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many leading ids are the same."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    low, high = 0, shorter
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _lay_out(members: Sequence[Sample]) -> Packed:
    """Depth first, by walking the ordered samples and keeping the path from the root."""
    token_ids: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    path: list[int] = []
    trained: list[tuple[int, int, int, int]] = []
    before: tuple[int, ...] = ()
    ordered = sorted(members, key=_order)
    for owner, sample in enumerate(ordered):
        shared = shared_prefix(before, sample.token_ids)
        for closed in path[shared:]:
            ends[closed] = len(token_ids)
        del path[shared:]
        for depth in range(shared, len(sample.token_ids)):
            path.append(len(token_ids))
            token_ids.append(sample.token_ids[depth])
            positions.append(depth)
            ends.append(-1)
        trained += [(path[at - 1], sample.token_ids[at], owner, at) for at in sample.targets]
        before = sample.token_ids
    for closed in path:
        ends[closed] = len(token_ids)
    sources, targets, owners, places = zip(*trained, strict=True)
    return Packed(
        samples=tuple(ordered),
        token_ids=tuple(token_ids),
        positions=tuple(positions),
        nodes=tuple(_nodes(positions, ends)),
        sources=sources,
        targets=targets,
        owners=owners,
        places=places,
    )


def _nodes(positions: list[int], ends: list[int]) -> Iterator[Node]:
    """Cuts the layout where a subtree begins or ends; `ends` is parallel to `positions`."""
    starts = [
        index
        for index in range(len(positions))
        if index == 0
        or positions[index] != positions[index - 1] + 1
        or ends[index] != ends[index - 1]
    ]
    open_: list[int] = []
    for number, (start, stop) in enumerate(pairwise([*starts, len(positions)])):
        open_ = [each for each in open_ if ends[starts[each]] > start]
        yield Node(stop - start, tuple(open_))
        open_.append(number)

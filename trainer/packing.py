"""Packing: samples become micro-batches, flat sequences in which a shared prefix stands once.

The samples of a micro-batch form a trie by their token ids, laid out depth first. A token sees
exactly its ancestors and itself, and its position is its depth: so every sample has the logprobs
and gradients that it has alone, while a prefix that eight samples share is computed once, not
eight times. A micro-batch holds at most `micro_tokens` tokens, counted as laid out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import NamedTuple

import msgspec

from flywheel.experts import joined
from flywheel.records import Experts
from trainer.fitting import WIDTH, WINDOW, fit, order, plan, shared_prefix
from trainer.samples import Picture, Sample

AT_ONE = frozenset({"ce", "dpo", "kto"})
"""Loss components that ask what the model itself says, at temperature 1. All others compare it with
who sampled, at the temperature that they sampled at."""


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
    temperatures: tuple[float, ...]
    """[m] that the trained token's logprob is taken at."""
    pictures: tuple[Picture, ...] = ()
    """In the order of their placeholders, which begin at `start` of the tokens laid out."""
    experts: Experts | None = None
    """Of the tokens laid out: a shared one's are those of the first sample that has it."""

    @property
    def sample_tokens(self) -> int:
        """Tokens of all samples, shared prefixes counted each time."""
        return sum(len(sample.token_ids) for sample in self.samples)


def pack(
    samples: Sequence[Sample], micro_tokens: int, ranks: int = 1, *, width: int = WIDTH
) -> list[Packed]:
    """One optimizer step's micro-batches, equally many a rank: rank r computes those at r,
    r + ranks, … (`trainer.fitting.plan`). Depends on the samples alone, not on their order.

    Raises:
        UsageError: one sample, or one pair, is longer than `micro_tokens`.
    """
    return [lay_out(members) for members in plan(samples, micro_tokens, ranks, width=width)]


def pack_stream(
    samples: Iterable[Sample], micro_tokens: int, *, window: int = WINDOW
) -> Iterator[Packed]:
    """Micro-batches of samples that come one by one, each as soon as `window` of them wait: none
    waits for more than `window` micro-batches. The samples of a pair come one after the other.

    Raises:
        UsageError: one sample, or one pair, is longer than `micro_tokens`.
    """
    units = (tuple(unit) for _, unit in groupby(samples, lambda each: each.pair_id or object()))
    for group in fit(units, micro_tokens, window=window):
        yield lay_out(list(chain.from_iterable(group)))


def lay_out(members: Sequence[Sample]) -> Packed:
    """Depth first, by walking the ordered samples and keeping the path from the root. Without
    samples it is one token that nothing is trained on: what a rank without work computes."""
    ordered = sorted(members, key=order)
    token_ids: list[int] = []
    positions: list[int] = []
    path: list[int] = []
    starts = {0}
    trained: list[tuple[int, int, int, int, float]] = []
    pictures: list[Picture] = []
    experts: list[tuple[Experts | None, int, int]] = []
    before: tuple[int, ...] = ()
    for owner, sample in enumerate(ordered):
        ids, keys = sample.token_ids, sample.keys
        shared = shared_prefix(before, keys)
        if 0 < shared < len(before):
            starts.add(path[shared - 1] + 1)
        if shared < len(before):
            starts.add(len(token_ids))
        path[shared:] = range(len(token_ids), len(token_ids) + len(ids) - shared)
        pictures += [
            msgspec.structs.replace(one, start=path[one.start])
            for one in sample.pictures
            if one.start >= shared
        ]
        experts.append((sample.experts, shared, len(ids)))
        token_ids += ids[shared:]
        positions += range(shared, len(ids))
        trained += [
            (path[at - 1], ids[at], owner, at, temperature)
            for at, temperature in zip(sample.targets, _temperatures(sample), strict=True)
        ]
        before = keys
    if not ordered:
        token_ids, positions = [0], [0]
    columns = tuple(zip(*trained, strict=True)) or ((),) * 5
    sources, targets, owners, places, temperatures = columns
    return Packed(
        samples=tuple(ordered),
        token_ids=tuple(token_ids),
        positions=tuple(positions),
        nodes=tuple(_nodes(positions, sorted(starts))),
        sources=sources,
        targets=targets,
        owners=owners,
        places=places,
        temperatures=temperatures,
        pictures=tuple(pictures),
        experts=joined(experts),
    )


def _temperatures(sample: Sample) -> list[float]:
    """Parallel to its targets. What was decoded greedily has no softmax to be compared with."""
    asked = [weights for name, weights in sample.weights.items() if name not in AT_ONE]
    temperature = (sample.sampling and sample.sampling.temperature) or 1.0
    return [
        temperature if any(weights[at] > 0 for weights in asked) else 1.0 for at in sample.targets
    ]


def _nodes(positions: list[int], starts: list[int]) -> Iterator[Node]:
    """Depth first, a node's ancestors are the open ones that begin less deep."""
    open_: list[int] = []
    for number, (start, stop) in enumerate(pairwise([*starts, len(positions)])):
        open_ = [each for each in open_ if positions[starts[each]] < positions[start]]
        yield Node(stop - start, tuple(open_))
        open_.append(number)

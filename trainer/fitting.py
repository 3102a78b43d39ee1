"""Fitting: which samples stand together in a micro-batch, and which rank computes it.

Windowed best-fit: of a window of units (a pair, else a single sample) the oldest opens a
micro-batch, and it is filled by what shares most of its prefix with it, then by the largest that
fits. So no unit waits for more micro-batches than the window has places, whether samples stream in
or are all there. Sizes count a shared prefix once.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from flywheel.errors import UsageError
from trainer.samples import Sample

WINDOW = 64
"""Units among which the best are looked for."""
WIDTH = 1024
"""Hidden size where the caller names none: it says how much attention weighs in the balance."""
_TRIES = 8
"""Halvings of the bound on a micro-batch's FLOPs: to 1% of the range or less."""

Unit = tuple[Sample, ...]
"""What must not be parted."""


def plan(
    samples: Sequence[Sample], micro_tokens: int, ranks: int = 1, *, width: int = WIDTH
) -> list[list[Sample]]:
    """The samples of each micro-batch of one optimizer step, as they do not depend on the order
    given. Rank r computes those at r, r + ranks, …: all ranks have equally many, and at the same
    time nearly equal FLOPs. [] is a micro-batch without samples.

    Raises:
        UsageError: one sample, or one pair, is longer than `micro_tokens`.
    """
    units = units_of(samples)
    fitted = list(fit(units, micro_tokens, width=width))
    if ranks > 1:
        fitted = _balanced(units, fitted, micro_tokens, ranks, width)
    return [[sample for unit in group for sample in unit] for group in fitted]


def fit(
    units: Iterable[Unit],
    micro_tokens: int,
    *,
    flops: float = math.inf,
    width: int = WIDTH,
    window: int = WINDOW,
) -> Iterator[list[Unit]]:
    """Micro-batches of units that come one by one: each is made as soon as `window` units wait, and
    has at most `micro_tokens` tokens and, unless one unit alone has more, `flops`.

    Raises:
        UsageError: one unit is longer than `micro_tokens`.
    """
    waiting: list[_Waiting] = []
    for unit in units:
        waiting.append(_Waiting(unit, width))
        tokens = waiting[-1].cost.tokens
        if tokens > micro_tokens:
            raise UsageError(
                f"row {unit[0].row_id} has {tokens} tokens, more than train.micro_tokens = "
                f"{micro_tokens}: raise that, or drop long rows with the length rule"
            )
        if len(waiting) >= window:
            yield _fill(waiting, micro_tokens, flops)
    while waiting:
        yield _fill(waiting, micro_tokens, flops)


def units_of(samples: Iterable[Sample]) -> list[Unit]:
    """In the order of their tokens, so that what shares a prefix is near."""
    units: dict[object, list[Sample]] = {}
    for sample in sorted(samples, key=order):
        units.setdefault(sample.pair_id or object(), []).append(sample)
    return [tuple(unit) for unit in units.values()]


def order(sample: Sample) -> tuple[tuple[int, ...], str, str]:
    """Lexicographic by tokens, so that what shares a prefix is adjacent; ids break ties."""
    return sample.keys, sample.row_id, sample.trace_id or ""


class Cost(NamedTuple):
    tokens: int
    """As laid out: a shared prefix counts once."""
    flops: float
    """A layer's linear parts cost 24 w² a token, its attention 4 w for each token seen (Kaplan et
    al. 2020, "Scaling Laws for Neural Language Models", table 1, with w = d_model): in units of the
    former, a token that sees c tokens costs 1 + c / 6w."""


def cost_of(samples: Iterable[Sample], width: int = WIDTH) -> Cost:
    """Of computing them together."""
    tokens, flops = 0, 0.0
    before: tuple[int, ...] = ()
    for keys in sorted(sample.keys for sample in samples):
        added = _added(len(keys), shared_prefix(before, keys), width)
        tokens, flops, before = tokens + added.tokens, flops + added.flops, keys
    return Cost(tokens, flops)


def _added(length: int, shared: int, width: int) -> Cost:
    seen = (length * (length + 1) - shared * (shared + 1)) / 2
    return Cost(length - shared, length - shared + seen / (6 * width))


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


class _Waiting:
    """A unit that waits, and how much of it the open micro-batch has already."""

    def __init__(self, unit: Unit, width: int) -> None:
        self.unit, self.width = unit, width
        self.keys = [sample.keys for sample in unit]
        # Sample by sample: of its leading tokens, those that need not be computed for it.
        self.alone = [0] * len(unit)
        for place, keys in enumerate(self.keys):
            self._compare(self.alone, keys, place + 1)
        self.forget()

    def forget(self) -> None:
        """When the next micro-batch opens."""
        self.shared = self.alone.copy()
        self._count()

    def beside(self, other: "_Waiting") -> None:
        if any([self._compare(self.shared, keys, 0) for keys in other.keys]):
            self._count()

    def _compare(self, shared: list[int], other: tuple[int, ...], first: int) -> bool:
        more = False
        for place in range(first, len(self.keys)):
            own, known = self.keys[place], shared[place]
            # Most comparisons end here: one token says that no more is shared than is known.
            if own[known : known + 1] == other[known : known + 1] != ():
                shared[place] = max(known, shared_prefix(own, other))
                more = more or shared[place] > known
        return more

    def _count(self) -> None:
        added = [
            _added(len(keys), shared, self.width)
            for keys, shared in zip(self.keys, self.shared, strict=True)
        ]
        self.saved = sum(self.shared)
        self.cost = Cost(sum(one.tokens for one in added), sum(one.flops for one in added))


def _fill(waiting: list[_Waiting], tokens: int, flops: float) -> list[Unit]:
    """Takes one micro-batch's units out of those that wait, the oldest first."""
    chosen = [waiting.pop(0)]
    while True:
        newest = chosen[-1]
        tokens, flops = tokens - newest.cost.tokens, flops - newest.cost.flops
        best, key = None, (-1, -1)
        for one in waiting:
            one.beside(newest)
            fits = one.cost.tokens <= tokens and one.cost.flops <= flops
            if fits and (one.saved, one.cost.tokens) > key:
                best, key = one, (one.saved, one.cost.tokens)
        if best is None:
            break
        waiting.remove(best)
        chosen.append(best)
    for one in waiting:
        if one.shared != one.alone:
            one.forget()
    return [one.unit for one in chosen]


def _balanced(
    units: Sequence[Unit], fitted: list[list[Unit]], micro_tokens: int, ranks: int, width: int
) -> list[list[Unit]]:
    """As many micro-batches as `fitted` has, or as many more as make all ranks busy, with the
    lowest bound on each one's FLOPs that still gives no more of them."""

    def flops(group: list[Unit]) -> float:
        return cost_of(chain.from_iterable(group), width).flops

    rounds = -(-len(fitted) // ranks)
    low = sum(map(flops, fitted)) / (rounds * ranks)
    high = max(map(flops, fitted))
    for _ in range(_TRIES):
        middle = (low + high) / 2
        tried = list(fit(units, micro_tokens, flops=middle, width=width))
        if len(tried) <= rounds * ranks:
            fitted, high = tried, middle
        else:
            low = middle
    fitted = sorted(fitted, key=flops, reverse=True)
    fitted += [[] for _ in range(rounds * ranks - len(fitted))]
    placed = fitted.copy()
    # Ranks meet after each micro-batch or after the step: those of like cost stand in one round,
    # and the largest of a round goes to who has computed least.
    spent = [0.0] * ranks
    for at in range(0, len(fitted), ranks):
        least_first = sorted(range(ranks), key=spent.__getitem__)
        for rank, group in zip(least_first, fitted[at : at + ranks], strict=True):
            spent[rank] += flops(group)
            placed[at + rank] = group
    return placed

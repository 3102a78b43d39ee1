"""Sets of word trigrams as MinHash signatures, and which of many are near-duplicates: near linear.

Texts enter, a fixed number of bytes each leaves; then those bytes, in a stable order, in which what
comes first is kept, and for each that is nearly equal to a kept one its number. Two signatures
agree in each place with the probability of the sets' Jaccard (Broder, "On the Resemblance and
Containment of Documents", 1997); bands of them find the pairs (Leskovec, Rajaraman & Ullman,
"Mining of Massive Datasets", 3.4), of which each is compared. The same in any process.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from storage.shingles import shingled
from storage.word_hashes import mixed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Alike: TypeAlias = Callable[[NDArray[np.uint16], NDArray[np.uint16]], NDArray[np.float64]]

PLACES = 128
"""Of a signature: the estimate of a Jaccard of 0.8 has a standard deviation of 0.035."""
KEPT = 64
"""Rows of one cluster that others are compared with: in a larger tangle what is left then stays."""
_CHUNK = 4096
"""Signatures or pairs at a time."""


class Nearly(NamedTuple):
    of: "NDArray[np.int64]"
    """Parallel to the signatures: the number of the kept one that this one nearly equals; -1 = it
    is kept itself."""
    alike: "NDArray[np.float64]"
    """Their estimated Jaccard, or cosine; 0 where of is -1."""


def signatures(texts: Sequence[str]) -> list[bytes | None]:
    """16 bits of the minimum of each of PLACES hashes (b-bit minwise hashing: Li & König, "b-Bit
    Minwise Hashing", 2010); None = fewer than three words, too little to compare."""
    import numpy as np

    found = shingled(texts)
    made: list[bytes | None] = [None] * len(texts)
    if not len(found.hashes):
        return made
    starts = np.flatnonzero(np.diff(found.of, prepend=-1))
    hashes = (found.hashes >> np.uint64(32)).astype(np.uint32)
    # Each place has a permutation of its own of all 32-bit numbers: an odd multiple, moved.
    permuted, lowest = np.empty_like(hashes), np.empty((PLACES, len(starts)), np.uint32)
    for place, (odd, plus) in enumerate(_permutations()):
        np.multiply(hashes, odd, out=permuted)
        np.add(permuted, plus, out=permuted)
        np.minimum.reduceat(permuted, starts, out=lowest[place])
    kept = np.ascontiguousarray(lowest.T.astype(np.uint16))
    for number, place in enumerate(found.of[starts].tolist()):
        made[place] = kept[number].tobytes()
    return made


def _permutations() -> Iterator[tuple["np.uint32", "np.uint32"]]:
    import numpy as np

    seeds = np.arange(1, 2 * PLACES + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers = (mixed(seeds) >> np.uint64(32)).astype(np.uint32)
    yield from zip(numbers[:PLACES] | np.uint32(1), numbers[PLACES:], strict=True)


def bands_for(threshold: float) -> tuple[int, int]:
    """(bands, rows): the pair that finds all but one in a hundred of those on the threshold, and of
    such the one that brings the fewest others: P(s) = 1 - (1 - s^rows)^bands."""
    found = [
        (PLACES // rows, rows)
        for rows in range(1, 33)
        if 1 - (1 - threshold**rows) ** (PLACES // rows) >= 0.99
    ]
    return found[-1] if found else (PLACES, 1)


def share_equal(one: "NDArray[np.uint16]", other: "NDArray[np.uint16]") -> "NDArray[np.float64]":
    """Of places: what of two sets' signatures estimates their Jaccard."""
    import numpy as np

    found: NDArray[np.float64] = np.mean(one == other, axis=-1)
    return found


def nearly(
    lines: "NDArray[np.uint16]",
    threshold: float,
    alike: "Alike" = share_equal,
    bands: tuple[int, int] | None = None,
) -> Nearly:
    """
    Args:
        lines: [sets, PLACES]; what comes first is kept where two are nearly equal.
        threshold: of `alike`, from which they are.
        bands: (bands, rows) in which they are looked for; None = as a Jaccard asks.
    """
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, measure = len(lines), _Measure(lines, threshold, alike)
    found = Nearly(np.full(count, -1), np.zeros(count))
    left, right = _pairs(measure, bands or bands_for(threshold))
    if not len(left):
        return found
    graph = coo_array((np.ones(len(left), bool), (left, right)), shape=(count, count))
    _, cluster = connected_components(graph, directed=False)
    tangled = np.flatnonzero(np.bincount(cluster)[cluster] > 1)
    members = tangled[np.argsort(cluster[tangled], kind="stable")]
    ends = np.flatnonzero(np.diff(cluster[members], append=-1)) + 1
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        _keep_first(measure, members[start:end], found)
    return found


def _keep_first(measure: "_Measure", members: "NDArray[np.int64]", found: Nearly) -> None:
    """Of one cluster the first is kept and all go that nearly equal it; then of the others, and so
    on: a chain of small steps does not take away what is unlike the one that stays."""
    import numpy as np

    for _ in range(KEPT):
        if len(members) < 2:
            return
        kept, others = members[0], members[1:]
        score = measure.of(np.stack([np.full_like(others, kept), others], axis=1))
        near = score >= measure.threshold
        found.of[others[near]], found.alike[others[near]] = kept, score[near]
        members = others[~near]


def _pairs(
    measure: "_Measure", banded: tuple[int, int]
) -> tuple["NDArray[np.int64]", "NDArray[np.int64]"]:
    """Pairs that agree in a band and really are near: in each bucket every set with the first one
    and with the one before it, so that their number grows with the sets alone."""
    import numpy as np

    (bands, rows), lines = banded, measure.lines
    found = [np.empty((0, 2), np.int64)]
    for band in range(bands):
        key = _key(lines[:, band * rows : (band + 1) * rows])
        order = np.argsort(key, kind="stable")
        same = np.flatnonzero(key[order][1:] == key[order][:-1]) + 1
        if not len(same):
            continue
        fresh = np.ones(len(order), bool)
        fresh[same] = False
        first = order[np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))]
        for other in (first[same], order[same - 1]):
            pairs = np.stack([other, order[same]], axis=1)
            found.append(pairs[measure.of(pairs) >= measure.threshold])
    pairs = np.unique(np.concatenate(found), axis=0)
    return pairs[:, 0], pairs[:, 1]


def _key(band: "NDArray[np.uint16]") -> "NDArray[np.uint64]":
    import numpy as np

    key = np.zeros(len(band), np.uint64)
    for column in range(band.shape[1]):
        key = mixed(key + band[:, column].astype(np.uint64) + np.uint64(1))
    return key


class _Measure(NamedTuple):
    lines: "NDArray[np.uint16]"
    threshold: float
    alike: "Alike"

    def of(self, pairs: "NDArray[np.int64]") -> "NDArray[np.float64]":
        """How much alike the two of each pair are."""
        import numpy as np

        score = np.empty(len(pairs))
        for start in range(0, len(pairs), _CHUNK):
            some = pairs[start : start + _CHUNK]
            score[start : start + _CHUNK] = self.alike(
                self.lines[some[:, 0]], self.lines[some[:, 1]]
            )
        return score

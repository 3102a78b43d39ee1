"""A hash of each word of many texts at once, without an object for any of them.

Enter texts as bytes with spaces between their words; leave the words' hashes, text after text. A
hash is the sum of its letters, each times a power of a large odd base, mod 2^64 (the fingerprint of
Karp & Rabin, "Efficient Randomized Pattern-Matching Algorithms", 1987), mixed. Sums over a whole
stretch give those of all its words, and a word's hash is the same in any process.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BASE = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse."""
_STRETCH = 1 << 16
"""Bytes at a time: what is looked up for each fits the processor's cache."""
_SPACE = 32


def word_hashes(
    texts: Sequence[bytes],
) -> tuple["NDArray[np.uint64]", "NDArray[np.int64]"]:
    """The hashes of all words in their order; how many words each text has."""
    import numpy as np

    found = [_of_stretch(some) for some in _stretches(texts)]
    if not found:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    hashes, counts = zip(*found, strict=True)
    return np.concatenate(hashes), np.concatenate(counts)


def mixed(values: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
    """Each value's bits spread over the whole: the finaliser of SplitMix64 (Steele, Lea & Flood,
    "Fast Splittable Pseudorandom Number Generators", 2014)."""
    import numpy as np

    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    values = values ^ (values >> np.uint64(31))
    return values


def _stretches(texts: Sequence[bytes]) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    size = 0
    for text in texts:
        if some and size + len(text) > _STRETCH:
            yield some
            some, size = [], 0
        some.append(text)
        size += len(text) + 1
    if some:
        yield some


def _of_stretch(texts: list[bytes]) -> tuple["NDArray[np.uint64]", "NDArray[np.int64]"]:
    import numpy as np

    letters = np.frombuffer(b" %b " % b" ".join(texts), np.uint8)
    inside = letters != _SPACE
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    before, last = edges[::2], edges[1::2]
    many = len(letters) > _STRETCH
    powers, inverses = _made_powers(len(letters)) if many else _kept_powers()
    upto = np.cumsum(letters * powers[: len(letters)], dtype=np.uint64)
    hashes = mixed((upto[last] - upto[before]) * inverses[before])
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
    counts = np.diff(np.searchsorted(before, ends), prepend=0)
    return hashes, counts


@cache
def _kept_powers() -> tuple["NDArray[np.uint64]", "NDArray[np.uint64]"]:
    return _made_powers(_STRETCH)


def _made_powers(count: int) -> tuple["NDArray[np.uint64]", "NDArray[np.uint64]"]:
    """Of the base, and of its inverse."""
    import numpy as np

    one, other = np.full((2, count), 1, np.uint64)
    one[1:], other[1:] = _BASE, pow(_BASE, -1, 1 << 64)
    return np.multiply.accumulate(one), np.multiply.accumulate(other)

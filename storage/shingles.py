"""Texts as sets of hashed word trigrams, many at once: what leaks and near-duplicates are found by.

Enter texts; leave flat arrays of 64-bit hashes beside the number of the text that each is of. A
hash depends on the three words alone, in any process and version, so results can be repeated.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from flywheel.words import spaced
from storage.word_hashes import mixed, word_hashes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORDS = 3
"""Words in a row that are compared as one: fewer flag texts that only share a phrasing."""
_SHARED, _SHARED_BY = 0.1, 8
"""In how large a share of an environment's texts, and in how many at least, a trigram is their
template's."""


class Shingles(NamedTuple):
    told: list[bytes]
    """Each text's words with spaces between and around them."""
    words: "NDArray[np.int64]"
    """How many words each text has."""
    hashes: "NDArray[np.uint64]"
    """Of each text's trigrams in their order, repeated ones too; a text of fewer words has none."""
    of: "NDArray[np.int64]"
    """Parallel to hashes: the text's place."""
    bags: "NDArray[np.uint64]"
    """Of each text a hash of its words in any order."""


def shingled(texts: Iterable[str]) -> Shingles:
    import numpy as np

    told = [spaced(text) for text in texts]
    flat, counts = word_hashes(told)
    of = np.repeat(np.arange(len(told)), counts)
    bags = _sums(mixed(flat), counts)
    if len(flat) < WORDS:
        return Shingles(told, counts, np.empty(0, np.uint64), np.empty(0, np.int64), bags)
    whole = of[: -WORDS + 1] == of[WORDS - 1 :]
    return Shingles(told, counts, _joined(flat)[whole], of[: -WORDS + 1][whole], bags)


def _sums(values: "NDArray[np.uint64]", counts: "NDArray[np.int64]") -> "NDArray[np.uint64]":
    """Of each text the sum of its values, which wraps; 0 where it has none."""
    import numpy as np

    upto = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)))
    ends = np.cumsum(counts)
    sums: NDArray[np.uint64] = upto[ends] - upto[ends - counts]
    return sums


def _joined(words: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
    """A hash for each three words in a row: a sum that tells their order, mixed."""
    import numpy as np

    first, second, third = words[:-2], words[1:-1], words[2:]
    told = first * np.uint64(0x9E3779B97F4A7C15) + second * np.uint64(0xC2B2AE3D27D4EB4F)
    told += third * np.uint64(0x165667B19E3779F9)
    return mixed(told)


def once(of: "NDArray[np.int64]", values: "NDArray[np.generic]") -> "NDArray[np.int64]":
    """Places of the first of each (of, value), sorted by both."""
    import numpy as np

    order = np.lexsort((values, of))
    sorted_of, sorted_values = of[order], values[order]
    first = np.ones(len(order), bool)
    first[1:] = (sorted_of[1:] != sorted_of[:-1]) | (sorted_values[1:] != sorted_values[:-1])
    return order[first]


def without_templates(
    of: Any, hashes: Any, environments: Any
) -> tuple["NDArray[np.bool_]", "NDArray[np.uint64]"]:
    """Which trigrams are the texts' own, parallel to `of` and `hashes`; and the templates', sorted:
    those that a large share of an environment's texts have.

    An environment of enough texts has its own template, so that what others share hides none of
    its words; one of few has those of all.
    """
    import numpy as np

    sizes = np.bincount(environments)
    where = environments[of]
    found = {}
    for number, texts in enumerate(sizes.tolist()):
        if texts >= _SHARED_BY:
            grams, times = np.unique(hashes[where == number], return_counts=True)
            found[number] = grams[times >= max(_SHARED_BY, _SHARED * texts)]
    shared = np.unique(np.concatenate([np.empty(0, np.uint64), *found.values()]))
    own = ~np.isin(hashes, shared)
    for number, template in found.items():
        here = where == number
        own[here] = ~np.isin(hashes[here], template)
    return own, shared

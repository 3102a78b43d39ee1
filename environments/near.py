"""Finds nearly equal texts among many without comparing each with each.

Enter: texts. Leaves: whether one nearly equal was there before. Invariant: exactly those are found
whose word trigrams' Jaccard is at least the threshold.
"""

import math
import re
import zlib
from collections import defaultdict

_WORD = re.compile(r"\w+")


def trigrams(text: str) -> frozenset[tuple[str, ...]]:
    """The word trigrams of `text`, case and punctuation apart; a shorter text is its own one."""
    words = _WORD.findall(text.lower())
    if len(words) < 3:
        return frozenset([tuple(words)]) if words else frozenset()
    return frozenset(zip(words, words[1:], words[2:], strict=False))


class NearIndex:
    """Texts by the rarest-first prefix of their trigrams: two sets of Jaccard t or more share a
    trigram within the first |x| - ceil(t |x|) + 1 of each, in any order common to all (Bayardo, Ma
    & Srikant, "Scaling Up All Pairs Similarity Search", 2007). The order here is by hash."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._sets: list[frozenset[tuple[str, ...]]] = []
        self._by_gram: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._seen: set[frozenset[tuple[str, ...]]] = set()

    def add(self, text: str) -> None:
        grams = trigrams(text)
        if not grams or grams in self._seen:
            return
        self._seen.add(grams)
        for gram in self._prefix(grams):
            self._by_gram[gram].append(len(self._sets))
        self._sets.append(grams)

    def near(self, text: str) -> bool:
        grams = trigrams(text)
        if grams in self._seen:
            return True
        candidates = {at for gram in self._prefix(grams) for at in self._by_gram.get(gram, ())}
        return any(self._jaccard(grams, self._sets[at]) >= self.threshold for at in candidates)

    def _prefix(self, grams: frozenset[tuple[str, ...]]) -> list[tuple[str, ...]]:
        ordered = sorted(grams, key=lambda gram: (zlib.crc32(" ".join(gram).encode()), gram))
        return ordered[: len(ordered) - math.ceil(self.threshold * len(ordered) - 1e-9) + 1]

    @staticmethod
    def _jaccard(one: frozenset[tuple[str, ...]], other: frozenset[tuple[str, ...]]) -> float:
        shared = len(one & other)
        return shared / (len(one) + len(other) - shared) if shared else 0.0

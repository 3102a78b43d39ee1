"""Finds nearly equal texts among many without comparing each with each.

Enter: texts. Leaves: which one before it is nearly equal. Invariant: exactly those are found whose
word trigrams' Jaccard is at least the threshold.
"""

import math
from array import array
from collections.abc import Iterable
from typing import TypeAlias

from flywheel.words import words_of

_PLACES = 1 << 22
_Grams: TypeAlias = "array[int]"
"""The hashes of a text's trigrams, each once, in the order of `NearIndex`."""


def trigrams(text: str) -> frozenset[tuple[str, ...]]:
    """The word trigrams of `text`, case and punctuation apart; a shorter text is its own one."""
    words = words_of(text)
    if len(words) < 3:
        return frozenset([tuple(words)]) if words else frozenset()
    return frozenset(zip(words, words[1:], words[2:], strict=False))


class Frequencies:
    """About how often each trigram occurs in texts, in fixed memory: trigrams share places."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._counts = array("I", bytes(4 * _PLACES))
        for text in texts:
            for gram in trigrams(text):
                self._counts[hash(gram) % _PLACES] += 1

    def of(self, gram: int) -> int:
        return self._counts[gram % _PLACES]


class NearIndex:
    """Texts by the rarest-first prefix of their trigrams: two sets of Jaccard t or more share a
    trigram within the first |x| - ceil(t |x|) + 1 of each, in any order common to all (Bayardo, Ma
    & Srikant, "Scaling Up All Pairs Similarity Search", 2007)."""

    def __init__(self, threshold: float, frequencies: Frequencies | None = None) -> None:
        """
        Args:
            frequencies: of all texts to come. Without them the order is by hash alone, which is
                slow where many texts share their words.
        """
        self.threshold = threshold
        self._frequencies = frequencies
        self._sets: list[_Grams] = []
        self._by_gram: dict[int, int | list[int]] = {}
        self._seen: dict[bytes, int] = {}

    def add(self, text: str) -> int | None:
        """The text's number, from 0; the earlier one's where its words are the same. None = it has
        no words."""
        grams = self._hashed(text)
        if not grams:
            return None
        number = self._seen.setdefault(grams.tobytes(), len(self._sets))
        if number == len(self._sets):
            self._sets.append(grams)
            for gram in grams[: self._prefix(len(grams))]:
                self._put(gram, number)
        return number

    def find(self, text: str) -> int | None:
        """The number of the earliest text that is nearly this one; None = there is none."""
        grams = self._hashed(text)
        if (same := self._seen.get(grams.tobytes())) is not None:
            return same
        own, size = set(grams), len(grams)
        for number in sorted(self._candidates(grams)):
            other = self._sets[number]
            small, large = sorted((size, len(other)))
            if small < self.threshold * large:
                continue
            shared = sum(gram in own for gram in other)
            if shared and shared / (size + len(other) - shared) >= self.threshold:
                return number
        return None

    def near(self, text: str) -> bool:
        return self.find(text) is not None

    def _hashed(self, text: str) -> _Grams:
        hashes = {hash(gram) for gram in trigrams(text)}
        of = self._frequencies.of if self._frequencies else lambda _: 0
        return array("q", sorted(hashes, key=lambda gram: (of(gram), gram)))

    def _prefix(self, size: int) -> int:
        return size - math.ceil(self.threshold * size - 1e-9) + 1

    def _candidates(self, grams: _Grams) -> set[int]:
        found: set[int] = set()
        for gram in grams[: self._prefix(len(grams))]:
            numbers = self._by_gram.get(gram)
            if isinstance(numbers, int):
                found.add(numbers)
            elif numbers:
                found.update(numbers)
        return found

    def _put(self, gram: int, number: int) -> None:
        """Most trigrams are one text's: a list only where they are more."""
        there = self._by_gram.get(gram)
        if there is None:
            self._by_gram[gram] = number
        elif isinstance(there, int):
            self._by_gram[gram] = [there, number]
        else:
            there.append(number)

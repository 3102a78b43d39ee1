"""The held-out problems' words as one index: which of them a text repeats, whole or edited.

Enter the held-out texts, then texts in batches; leaves for each the nearest held-out one, where it
is near enough to be a leak. What most texts of one environment share (a template, a greeting) is
not compared. Each pair that can reach the threshold is scored exactly; which pairs can is decided
by the trigrams that few held-out texts have, so that the work grows with the rows alone.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from storage.shingles import Shingles, once, shingled, without_templates

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONTAINED = 8
"""Trigrams that a text must have before its lying inside a longer one means anything."""
LONG = 20
"""Trigrams from which a held-out text is found again by REPEATED of them alone. A text of thirty
words has 28."""
REPEATED = 0.6
"""Share of its trigrams. A word that is replaced breaks three, so of thirty words with three of
them replaced 68% remain at least: a tenth edited anywhere is found. No setting raises it."""
REORDERED = 6
"""Words from which a text is the same in any order of them."""
_RARE, _FREQUENT, _STILL = 64, 256, 4
"""Trigrams of up to _RARE texts bring all these as candidates; of more frequent ones the _STILL
rarest of a text bring the first _FREQUENT."""
_SHIFT = 40
"""What is left of a hash says in a table of 16 MB whether any held-out text may have it."""
_PAIRS = 4_000_000
"""Candidate pairs at a time."""


class Near(NamedTuple):
    place: int
    """Of the text in its batch."""
    key: str
    score: float
    """On the scale of the Jaccard."""


class HeldoutWords:
    def __init__(self, texts: Sequence[tuple[str, str, str]], threshold: float) -> None:
        """
        Args:
            texts: (key, environment, text), sorted by key; of equal texts the first is named.
            threshold: trigram Jaccard from which two texts of any length are the same.
        """
        import numpy as np

        self.threshold = threshold
        found = shingled(text for _, _, text in texts)
        self.equal: dict[bytes, str] = {}
        self.bags: dict[int, str] = {}
        named: list[int] = []
        for place, (told, (key, _, _)) in enumerate(zip(found.told, texts, strict=True)):
            spelled = told.replace(b" ", b"")
            if spelled and spelled not in self.equal:
                self.equal[spelled] = key
                named.append(place)
            if found.words[place] >= REORDERED:
                self.bags.setdefault(int(found.bags[place]), key)
        self.keys = [texts[place][0] for place in named]
        first = once(found.of, found.hashes)
        number = np.full(len(texts), -1)
        number[named] = np.arange(len(named))
        of, hashes = number[found.of[first]], found.hashes[first]
        of, hashes = of[of >= 0], hashes[of >= 0]
        environments = np.unique([texts[place][1] for place in named], return_inverse=True)[1]
        own, shared = without_templates(of, hashes, environments)
        self._index(of[own], hashes[own])
        self.shared = np.setdiff1d(shared, self.grams)

    def same(self, batch: Shingles, place: int) -> str | None:
        """The held-out text that a text of the batch equals, however it is spaced; of REORDERED
        words and more in any order."""
        key = self.equal.get(batch.told[place].replace(b" ", b""))
        if key is None and batch.words[place] >= REORDERED:
            key = self.bags.get(int(batch.bags[place]))
        return key

    def _index(self, of: "NDArray[np.int64]", hashes: "NDArray[np.uint64]") -> None:
        """
        Args:
            of, hashes: each trigram of each text once, the template's left out.
        """
        import numpy as np
        from scipy.sparse import csr_array

        self.grams, gram = np.unique(hashes, return_inverse=True)
        self.sizes = np.bincount(of, minlength=len(self.keys))
        shape = (len(self.keys), len(self.grams))
        ones = np.ones(len(of), np.int32)
        self.texts = csr_array((ones, (of, gram)), shape=shape)
        by_gram = self.texts.T.tocsr()
        by_gram.sort_indices()
        self.starts, self.members = by_gram.indptr.astype(np.int64), by_gram.indices
        self.frequency = np.diff(self.starts)
        self.maybe = np.zeros(1 << 64 - _SHIFT, bool)
        self.maybe[self.grams >> np.uint64(_SHIFT)] = True

    def near(self, batch: Shingles, *, only_within: "NDArray[np.bool_]") -> list[Near]:
        """The nearest held-out text of each text of the batch that leaks one.

        Args:
            only_within: parallel to the batch's texts: held-out ones are only looked for inside it.
        """
        import numpy as np

        hits, sizes = self._hits(batch, only_within)
        if not len(hits.of):
            return []
        found: dict[int, tuple[float, int]] = {}
        for some in _portions(hits, self._expanded(hits)):
            of, text, shared = self._shared_by(some, sizes, only_within)
            score, leaks = self._scores(shared, sizes[of], self.sizes[text], only_within[of])
            for at in np.flatnonzero(leaks).tolist():
                best = (-float(score[at]), int(text[at]))
                found[int(of[at])] = min(found.get(int(of[at]), best), best)
        return [
            Near(place, self.keys[text], -score) for place, (score, text) in sorted(found.items())
        ]

    def _hits(
        self, batch: Shingles, only_within: "NDArray[np.bool_]"
    ) -> tuple["_Hits", "NDArray[np.int64]"]:
        """The batch's trigrams that some held-out text has, each once a text, of texts with enough
        of them to leak one; and how many trigrams each of these has at all, where that matters."""
        import numpy as np

        texts = len(batch.words)
        maybe = np.flatnonzero(self.maybe[batch.hashes >> np.uint64(_SHIFT)])
        if not len(maybe):
            return _Hits(maybe, maybe), np.zeros(texts, np.int64)
        hashes = batch.hashes[maybe]
        gram = np.minimum(np.searchsorted(self.grams, hashes), len(self.grams) - 1)
        there = self.grams[gram] == hashes
        of, gram = batch.of[maybe[there]], gram[there]
        least = np.where(only_within, self._wanted(0, CONTAINED, True), 1)
        touched = np.bincount(of, minlength=texts) >= least - 1e-6
        of, gram = of[touched[of]], gram[touched[of]]
        first = once(of, gram)
        sized = (touched & ~only_within)[batch.of]
        own, whole = batch.of[sized], batch.hashes[sized]
        each = once(own, whole)
        each = each[~np.isin(whole[each], self.shared)]
        return _Hits(of[first], gram[first]), np.bincount(own[each], minlength=texts)

    def _expanded(self, hits: "_Hits") -> "NDArray[np.int64]":
        """How many candidates each hit brings."""
        import numpy as np

        frequency = self.frequency[hits.gram]
        order = np.lexsort((frequency, hits.of))
        of = hits.of[order]
        start = np.searchsorted(of, of)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - start
        rare = frequency <= _RARE
        return np.where(
            rare, frequency, np.where(rank < _STILL, np.minimum(frequency, _FREQUENT), 0)
        )

    def _shared_by(
        self, some: "tuple[_Hits, NDArray[np.int64]]", sizes: Any, only_within: Any
    ) -> tuple[Any, Any, Any]:
        """(text of the batch, held-out text, trigrams in common) of each pair that may leak."""
        import numpy as np
        from scipy.sparse import csr_array

        hits, expanded = some
        of = np.repeat(hits.of, expanded)
        offset = np.arange(len(of)) - np.repeat(np.cumsum(expanded) - expanded, expanded)
        text = self.members[np.repeat(self.starts[hits.gram], expanded) + offset]
        pairs, seen = np.unique(of * len(self.keys) + text, return_counts=True)
        of, text = pairs // len(self.keys), pairs % len(self.keys)
        # Hits that did not bring all their texts may be in common with any of them.
        open_ = np.bincount(
            hits.of, weights=expanded < self.frequency[hits.gram], minlength=len(sizes)
        )
        wanted = self._wanted(sizes[of], self.sizes[text], only_within[of])
        may = seen + open_[of] >= wanted - 1e-6
        of, text = of[may], text[may]
        ones = np.ones(len(hits.of), np.int32)
        given = csr_array((ones, (hits.of, hits.gram)), shape=(len(sizes), len(self.grams)))
        shared = given[of].multiply(self.texts[text]).sum(axis=1) if len(of) else np.empty(0)
        return of, text, np.asarray(shared).ravel()

    def _wanted(self, size: Any, other: Any, within: Any) -> Any:
        """Trigrams in common without which a pair is no leak."""
        import numpy as np

        at = self.threshold
        shorter = np.where(within, other, np.minimum(size, other))
        contained = np.where(shorter >= CONTAINED, 2 * at / (1 + at) * shorter, np.inf)
        whole = np.where(within, np.inf, at * np.maximum(size, other))
        long = np.where(other >= LONG, REPEATED * other, np.inf)
        return np.minimum(np.minimum(contained, whole), long)

    def _scores(self, shared: Any, size: Any, other: Any, within: Any) -> tuple[Any, Any]:
        """How near each pair is, on the scale of the Jaccard, and whether it is a leak.

        The share c of the shorter text that lies in the longer is put on that scale by
        c = 2j / (1 + j), which is exact for equal lengths.
        """
        import numpy as np

        jaccard = np.where(within, 0.0, shared / np.maximum(size + other - shared, 1))
        shorter = np.where(within, other, np.minimum(size, other))
        inside = shared / np.maximum(shorter, 1)
        score = np.where(shorter >= CONTAINED, np.maximum(jaccard, inside / (2 - inside)), jaccard)
        repeated = (other >= LONG) & (shared / np.maximum(other, 1) >= REPEATED)
        return score, (score >= self.threshold - 1e-6) | repeated


class _Hits(NamedTuple):
    of: "NDArray[np.int64]"
    gram: "NDArray[np.int64]"


def _portions(hits: _Hits, expanded: Any) -> Any:
    """The hits, text by text, so few at a time that their candidate pairs fit in memory."""
    import numpy as np

    # `hits` lie sorted by text.
    total = np.cumsum(expanded)
    ends = np.flatnonzero(np.diff(hits.of, append=hits.of[-1] + 1)) + 1
    portion = total[ends - 1] // _PAIRS
    last = ends[np.flatnonzero(np.diff(portion, append=portion[-1] + 1))].tolist()
    for start, end in zip([0, *last[:-1]], last, strict=True):
        yield _Hits(hits.of[start:end], hits.gram[start:end]), expanded[start:end]

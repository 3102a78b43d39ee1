"""Leakage: training rows that touch a held-out problem, by identity or by the user's own words.

Rows and held-out problems come in; each row that must not be trained on goes out, with the problem
it touches. Words are compared without the prompt that all problems share (`text`), as sets of word
trigrams. Memory is bounded: rows are compared a chunk at a time.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from flywheel.errors import Refused
from flywheel.ids import digest
from flywheel.records import Problem, Record
from flywheel.rows import TrainingRow
from flywheel.words import words_of

WORDS = 3
"""Words in a row that are compared as one: fewer flag texts that only share a phrasing."""
CONTAINED = 8
"""Trigrams that a text must have before its lying inside a longer one means anything."""
CHUNK_ROWS, CHUNK_CHARACTERS = 4096, 4_000_000

Kind = Literal["problem", "prompt", "conversation", "user", "text", "near_duplicate"]


class Leak(Record, frozen=True, kw_only=True):
    place: int
    """Of the row in the rows that were given."""
    trace_id: str
    problem_id: str
    """The held-out problem that it touches; the nearest one where there are several."""
    by: Kind
    score: float
    """Share of trigrams in common; 1.0 where something is equal."""

    @property
    def reason(self) -> str:
        how = {
            "problem": "is an answer to",
            "prompt": "has the same prompt as",
            "conversation": "is of the same conversation as",
            "user": "is of the same user as",
            "text": "has the same words as",
            "near_duplicate": f"shares {self.score:.0%} of its trigrams with",
        }[self.by]
        return f"{how} held-out problem {self.problem_id}"


def leakage_check(
    rows: Sequence[TrainingRow], heldout: Sequence[Problem], near_duplicate: float = 0.7
) -> list[Leak]:
    """One leak a row at most, in the order of the rows; the surest kind of each.

    `near_duplicate` is the trigram Jaccard from which two texts are the same. A text that lies
    within a longer one counts from the share that texts of equal length have at that Jaccard.
    """
    problems = sorted(((problem.id, problem) for problem in heldout), key=lambda pair: pair[0])
    leaks = _same_identity(rows, problems)
    targets = _Targets([(key, words_of(_own_text(each))) for key, each in problems])
    for chunk in _chunks(rows, leaks):
        words = {place: words_of(_own_text(rows[place])) for place in chunk}
        for place, problem_id, by, score in targets.touched(words, near_duplicate):
            leaks[place] = _leak(rows, place, problem_id, by, score)
    return [leaks[place] for place in sorted(leaks)]


def require_no_leaks(
    rows: Sequence[TrainingRow], heldout: Sequence[Problem], near_duplicate: float = 0.7
) -> None:
    """The leakage gate on a finished dataset.

    Raises:
        Refused: a row touches a held-out problem; says how many, and names the first three.
    """
    leaks = leakage_check(rows, heldout, near_duplicate)
    if leaks:
        named = "; ".join(f"trace {leak.trace_id} {leak.reason}" for leak in leaks[:3])
        raise Refused(f"leakage: {len(leaks)} of {len(rows)} rows touch held-out problems: {named}")


def _same_identity(
    rows: Sequence[TrainingRow], problems: list[tuple[str, Problem]]
) -> dict[int, Leak]:
    ids = {key: key for key, _ in problems}
    prompts: dict[str, str] = {}
    conversations: dict[str, str] = {}
    users: dict[str, str] = {}
    for key, problem in problems:
        prompts.setdefault(digest(problem.messages, problem.tools), key)
        if problem.conversation:
            conversations.setdefault(problem.conversation, key)
        if problem.user:
            users.setdefault(problem.user, key)
    leaks: dict[int, Leak] = {}
    for place, row in enumerate(rows):
        found: tuple[tuple[Kind, str | None], ...] = (
            ("problem", ids.get(row.problem_id or "")),
            ("conversation", conversations.get(row.conversation or "")),
            ("user", users.get(row.user or "")),
            ("prompt", prompts.get(digest(row.messages, row.tools)) if problems else None),
        )
        touched = next(((key, by) for by, key in found if key is not None), None)
        if touched is not None:
            leaks[place] = _leak(rows, place, *touched)
    return leaks


class _Targets:
    """The held-out problems' words, ready to be compared with many rows'."""

    def __init__(self, texts: list[tuple[str, list[str]]]) -> None:
        self.equal: dict[tuple[str, ...], str] = {}
        for key, words in texts:
            if words:
                self.equal.setdefault(tuple(words), key)
        long = [(key, _trigrams(words)) for key, words in texts if len(words) >= WORDS]
        self.keys = [key for key, _ in long]
        if long:
            import numpy as np
            from sklearn.feature_extraction.text import CountVectorizer

            # Only trigrams that some problem has can be in common: they are the vocabulary.
            self.counter = CountVectorizer(analyzer=_as_it_is, binary=True, dtype=np.float32)
            self.wanted = self.counter.fit_transform([grams for _, grams in long]).T.tocsr()
            self.sizes = np.array([len(grams) for _, grams in long])

    def touched(
        self, texts: dict[int, list[str]], threshold: float
    ) -> Iterator[tuple[int, str, Kind, float]]:
        """Place, problem, kind and score of each text that is one of the problems'."""
        left = {}
        for place, words in texts.items():
            equal = self.equal.get(tuple(words))
            if equal is not None:
                yield place, equal, "text", 1.0
            elif len(words) >= WORDS and self.keys:
                left[place] = _trigrams(words)
        if not left:
            return
        common = (self.counter.transform(left.values()) @ self.wanted).tocsr()
        common.sort_indices()
        for at, (place, grams) in enumerate(left.items()):
            part = slice(common.indptr[at], common.indptr[at + 1])
            among = common.indices[part]
            nearest = _nearest(common.data[part], len(grams), self.sizes[among])
            if nearest is not None and nearest[1] >= threshold - 1e-6:
                yield place, self.keys[among[nearest[0]]], "near_duplicate", nearest[1]


def _nearest(shared: Any, size: int, sizes: Any) -> tuple[int, float] | None:
    """Which of the problems is nearest, and how near, on the scale of the Jaccard.

    shared, sizes: [problems with a trigram in common]. The share c of the shorter text that lies in
    the longer is put on that scale by c = 2j / (1 + j), which is exact for equal lengths.
    """
    import numpy as np

    if not len(shared):
        return None
    jaccard = shared / (size + sizes - shared)
    shorter = np.minimum(size, sizes)
    within = shared / shorter
    score = np.where(shorter >= CONTAINED, np.maximum(jaccard, within / (2 - within)), jaccard)
    best = int(np.argmax(score))  # the first of equals, and problems are sorted by id
    return best, float(score[best])


def _leak(
    rows: Sequence[TrainingRow], place: int, problem_id: str, by: Kind, score: float = 1.0
) -> Leak:
    return Leak(
        place=place,
        trace_id=rows[place].trace_id,
        problem_id=problem_id,
        by=by,
        score=score,
    )


def _chunks(rows: Sequence[TrainingRow], without: dict[int, Leak]) -> Iterator[list[int]]:
    """Places of rows, so few at a time that their trigrams fit in memory."""
    chunk: list[int] = []
    characters = 0
    for place in [place for place in range(len(rows)) if place not in without]:
        chunk.append(place)
        characters += len(_own_text(rows[place]))
        if len(chunk) >= CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _own_text(of: TrainingRow | Problem) -> str:
    """The user's own words; where nobody said which they are, the last message of theirs."""
    if of.text:
        return of.text
    return next((message.text for message in reversed(of.messages) if message.role == "user"), "")


def _trigrams(words: list[str]) -> set[str]:
    return {" ".join(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1)}


def _as_it_is(grams: set[str]) -> set[str]:
    return grams

"""Leakage: training rows that touch a held-out problem, by identity or by the user's own words.

Rows and held-out problems come in; each row that must not be trained on goes out, with the problem
it touches. Words are compared without the prompt that all problems share (`text`), as sets of word
trigrams. Memory is bounded: rows are compared a chunk at a time.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from flywheel.errors import Refused
from flywheel.ids import digest
from flywheel.records import Message, Problem, Record
from flywheel.rows import TrainingRow

WORDS = 3
"""Words in a row that are compared as one: fewer flag texts that only share a phrasing."""
CONTAINED = 8
"""Trigrams that a text must have before its lying inside a longer one means anything."""
CHUNK_ROWS, CHUNK_CHARACTERS = 4096, 4_000_000

# Scripts that put no space between words: each of their characters counts as one.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")

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
    rest = [place for place in range(len(rows)) if place not in leaks]
    texts = {place: _words(_own_text(rows[place].text, rows[place].messages)) for place in rest}
    targets = [(key, _words(_own_text(each.text, each.messages))) for key, each in problems]
    leaks |= _same_words(rows, texts, targets)
    left = {place: words for place, words in texts.items() if place not in leaks}
    leaks |= _near_words(rows, left, targets, near_duplicate)
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


def _same_words(
    rows: Sequence[TrainingRow],
    texts: dict[int, list[str]],
    targets: list[tuple[str, list[str]]],
) -> dict[int, Leak]:
    known: dict[tuple[str, ...], str] = {}
    for key, words in targets:
        if words:
            known.setdefault(tuple(words), key)
    return {
        place: _leak(rows, place, known[tuple(words)], "text")
        for place, words in texts.items()
        if tuple(words) in known
    }


def _near_words(
    rows: Sequence[TrainingRow],
    texts: dict[int, list[str]],
    targets: list[tuple[str, list[str]]],
    threshold: float,
) -> dict[int, Leak]:
    keyed = [(key, _trigrams(words)) for key, words in targets if len(words) >= WORDS]
    if not keyed or not texts:
        return {}
    import numpy as np
    from sklearn.feature_extraction.text import CountVectorizer

    # Only trigrams that some held-out problem has can be in common: they are the vocabulary.
    counter = CountVectorizer(analyzer=_as_it_is, binary=True, dtype=np.float32)
    wanted = counter.fit_transform([grams for _, grams in keyed]).T.tocsr()
    sizes = np.array([len(grams) for _, grams in keyed])
    leaks = {}
    for chunk in _chunks(texts):
        grams = [_trigrams(texts[place]) for place in chunk]
        common = (counter.transform(grams) @ wanted).tocsr()
        common.sort_indices()
        for at, place in enumerate(chunk):
            part = slice(common.indptr[at], common.indptr[at + 1])
            nearest = _nearest(common.data[part], len(grams[at]), sizes[common.indices[part]])
            if nearest is not None and nearest[1] >= threshold - 1e-6:
                key = keyed[common.indices[part][nearest[0]]][0]
                leaks[place] = _leak(rows, place, key, "near_duplicate", nearest[1])
    return leaks


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


def _chunks(texts: dict[int, list[str]]) -> Iterator[list[int]]:
    chunk: list[int] = []
    words = 0
    for place, text in texts.items():
        chunk.append(place)
        words += len(text)
        if len(chunk) >= CHUNK_ROWS or words * 6 >= CHUNK_CHARACTERS:
            yield chunk
            chunk, words = [], 0
    if chunk:
        yield chunk


def _own_text(text: str, messages: Sequence[Message]) -> str:
    """The user's own words; where nobody said which they are, the last message of theirs."""
    if text:
        return text
    return next((message.text for message in reversed(messages) if message.role == "user"), "")


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _trigrams(words: list[str]) -> set[str]:
    return {" ".join(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1)}


def _as_it_is(grams: set[str]) -> set[str]:
    return grams

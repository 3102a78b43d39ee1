"""Leakage: training rows that touch a held-out problem, by identity or by the user's own words.

Rows and held-out problems come in; each row that must not be trained on goes out, with the problem
it touches. Words are compared without the prompt that all problems share (`text`), as sets of word
trigrams; of a conversation all that the user said together and each turn alone are looked at, and
whether a held-out text stands in what anybody else said. Memory is bounded: rows are compared a
chunk at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from flywheel.ids import digest
from flywheel.records import Problem, Record
from flywheel.rows import TrainingRow
from storage.heldout_words import HeldoutWords
from storage.row_texts import Chunk, chunks, histories, instructions, own_text
from storage.shingles import shingled

TURN_WORDS = 4
"""Words that an earlier turn must have before being equal to a held-out text means anything:
"yes please" is said in every other conversation."""

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


class Heldout:
    """Every held-out problem that rows must not touch, ready to be compared with many of them."""

    def __init__(
        self,
        problems: Iterable[Problem],
        near_duplicate: float = 0.7,
        also: Iterable[tuple[str, Problem]] = (),
    ) -> None:
        """
        Args:
            also: other forms of some of them, by their ids: as rows read without what is personal.
            near_duplicate: the trigram Jaccard from which two texts are the same. A text that lies
                within a longer one counts from the share that texts of equal length have at that
                Jaccard; a long one that is repeated for the most part counts whatever is set here.
        """
        ordered = sorted(((one.id, one) for one in problems), key=lambda pair: pair[0])
        self.problems = {key for key, _ in ordered}
        ordered += also
        self.slices: dict[str, set[str]] = {}
        """Of each environment."""
        self.prompts: dict[str, str] = {}
        self.conversations: dict[str, str] = {}
        self.users: dict[str, str] = {}
        for key, problem in ordered:
            self.slices.setdefault(problem.environment, set()).add(problem.slice)
            self.prompts.setdefault(digest(problem.messages, problem.tools), key)
            if problem.conversation:
                self.conversations.setdefault(problem.conversation, key)
            if problem.user:
                self.users.setdefault(problem.user, key)
        self.headed = instructions(one for _, one in ordered)
        texts = [(key, one.environment, own_text(one)) for key, one in ordered]
        self.words = HeldoutWords(sorted([*texts, *histories(ordered)]), near_duplicate)

    def __len__(self) -> int:
        return len(self.problems)

    def leaks(self, rows: Sequence[TrainingRow]) -> list["Leak"]:
        """One leak a row at most, in the order of the rows; the surest kind of each."""
        if not self.problems:
            return []
        leaks: dict[int, Leak] = {}
        for place, row in enumerate(rows):
            if (found := self._same_identity(row)) is not None:
                leaks[place] = _leak(rows, place, *found)
        for chunk in chunks(rows, leaks.keys(), self.headed):
            for place, key, by, score in self._same_words(chunk):
                leaks[place] = _leak(rows, place, key, by, score)
        return [leaks[place] for place in sorted(leaks)]

    def _same_identity(self, row: TrainingRow) -> "tuple[str, Kind] | None":
        if row.problem_id in self.problems:
            return str(row.problem_id), "problem"
        if row.conversation and row.conversation in self.conversations:
            return self.conversations[row.conversation], "conversation"
        if row.user and row.user in self.users:
            return self.users[row.user], "user"
        prompt = self.prompts.get(digest(row.messages, row.tools))
        return None if prompt is None else (prompt, "prompt")

    def _same_words(self, chunk: Chunk) -> "Iterator[tuple[int, str, Kind, float]]":
        import numpy as np

        said = shingled(unit.text for unit in chunk.units)
        found: dict[int, str] = {}
        for at, unit in enumerate(chunk.units):
            if unit.part == "beside" or (unit.part == "turn" and said.words[at] < TURN_WORDS):
                continue
            if (key := self.words.same(said, at)) is not None:
                found |= {place: key for place in chunk.rows[at] if place not in found}
        for place, key in found.items():
            yield place, key, "text", 1.0
        best: dict[int, tuple[float, str]] = {}
        within = np.array([unit.part != "own" for unit in chunk.units], bool)
        for near in self.words.near(said, only_within=within):
            for place in chunk.rows[near.place]:
                best[place] = min(best.get(place, (0.0, "")), (-near.score, near.key))
        for place, (score, key) in best.items():
            if place not in found:
                yield place, key, "near_duplicate", -score


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

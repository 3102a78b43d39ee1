"""What was asked and answered in one row, as a bounded set of hashed words.

Rows enter; leave at most `KEPT` numbers a row, those with the smallest hashes of all its words: an
even draw of them (Broder 1997), the same wherever it is made. Short answers, such as labels, are
crossed with the words that they answer, so that a linear model can tell which goes with which.
"""

import zlib
from collections.abc import Iterator, Sequence

from flywheel.rows import TrainingRow
from flywheel.words import words_of
from storage.row_texts import own_text

KEPT = 64
LONGEST = 4000
"""Characters of a text that are looked at."""
SHORT = 48
"""Characters of an answer up to which it is crossed."""


def sketch(row: TrainingRow) -> list[int]:
    asked = own_text(row)
    said = row.completion.text or " ".join(
        f"{call.name} {call.arguments}" for call in row.completion.tool_calls
    )
    return sorted(set(_hashes(words_of(asked[:LONGEST]), words_of(said[:LONGEST]))))[:KEPT]


def _hashes(asked: Sequence[str], said: Sequence[str]) -> Iterator[int]:
    whole = " ".join(said)
    crossed = whole if len(whole) <= SHORT else ""
    for word in asked:
        yield zlib.crc32(f"q {word}".encode())
        if crossed:
            yield zlib.crc32(f"x {word} {crossed}".encode())
    for word in said:
        yield zlib.crc32(f"a {word}".encode())

"""Rows that fit: prompt and answer together at most so long, the answer at least so long.

Counted in tokens where they were recorded, else estimated from characters, and the reason says so.
"""

from collections.abc import Sequence
from math import ceil

from pydantic import Field

from flywheel.ids import canonical
from flywheel.records import Message, Text
from flywheel.rows import TrainingRow
from storage.rules.rule import Parameters, Rule, Verdicts

CHARACTERS_A_TOKEN = 3.0
"""Under what English needs (about 4), so that an estimate rather drops a row than lets through one
that does not fit."""


class Length(Parameters):
    max_tokens: int | None = Field(None, ge=1)
    """Prompt and answer together. None = any length."""
    min_tokens: int = Field(1, ge=0)
    """The answer alone, its end token included."""


def length(rows: Sequence[TrainingRow], parameters: Length) -> Verdicts:
    return [_verdict(row, parameters) for row in rows]


def _verdict(row: TrainingRow, parameters: Length) -> str | None:
    prompt, answer, how = count_tokens(row)
    most, least = parameters.max_tokens, parameters.min_tokens
    if most is not None and prompt + answer > most:
        return f"{prompt + answer} tokens{how}, at most {most} wanted"
    if answer < least:
        return f"answer of {answer} tokens{how}, at least {least} wanted"
    return None


def count_tokens(row: TrainingRow) -> tuple[int, int, str]:
    """Tokens of prompt and answer, and " (estimated)" where they had to be."""
    if row.tokens is not None:
        return len(row.tokens.prompt_ids), len(row.tokens.completion_ids), ""
    prompt = sum(_characters(message) for message in row.messages)
    prompt += sum(len(canonical(tool)) for tool in row.tools)
    answer = _characters(row.completion)
    return ceil(prompt / CHARACTERS_A_TOKEN), ceil(answer / CHARACTERS_A_TOKEN), " (estimated)"


def _characters(message: Message) -> int:
    return sum(
        len(part.text) if isinstance(part, Text) else len(canonical(part)) for part in message.parts
    )


RULE = Rule(Length, length)

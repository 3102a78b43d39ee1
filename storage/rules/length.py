"""Rows that fit: prompt and answer together at most so long, the answer at least so long.

Counted in tokens where they were recorded, else estimated from characters, and the reason says so.
"""

from collections.abc import Sequence

from pydantic import Field

from flywheel.rows import TrainingRow
from storage.rules.rule import Parameters, Rule, Verdicts
from storage.tokens_of import count_tokens


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


RULE = Rule(Length, length)

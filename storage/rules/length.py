"""Rows that fit: prompt and answer together at most so long, the answer at least so long.

Counted in tokens where they were recorded, else estimated from characters, and the reason says so.
"""

from typing import TYPE_CHECKING

from pydantic import Field

from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl


class Length(Parameters):
    max_tokens: int | None = Field(None, ge=1)
    """Prompt and answer together. None = any length."""
    min_tokens: int = Field(1, ge=0)
    """The answer alone, its end token included."""


def length(frame: "pl.DataFrame", parameters: Length, _: Known) -> "pl.Series":
    import polars as pl

    most, least = parameters.max_tokens, parameters.min_tokens
    answer = pl.col("answer_tokens")
    whole = pl.col("prompt_tokens") + answer
    how = pl.when("estimated").then(pl.lit(" (estimated)")).otherwise(pl.lit(""))
    why = (
        pl.when(whole > most if most is not None else pl.lit(False))
        .then(pl.format(f"{{}} tokens{{}}, at most {most} wanted", whole, how))
        .when(answer < least)
        .then(pl.format(f"answer of {{}} tokens{{}}, at least {least} wanted", answer, how))
    )
    return frame.select(why=why)["why"]


RULE = Rule(Length, length)

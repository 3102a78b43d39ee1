"""Rows that can be trained on as they were: recorded exactly, whole, and really an answer.

What was truncated, cut, refused or left empty never passes, whatever is accepted otherwise.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl

FINISHED = ("stop", "tool_calls", "function_call")
WRITTEN = ("import", "demonstration")
"""Origins whose rows were written down rather than sampled: they need not say how they ended."""


class Fidelity(Parameters):
    accept: tuple[Literal["trainable", "renderable"], ...] = Field(("trainable",), min_length=1)


def fidelity(frame: "pl.DataFrame", parameters: Fidelity, _: Known) -> "pl.Series":
    import polars as pl

    said, ended = pl.col("fidelity"), pl.col("finish_reason")
    wanted = f"fidelity {{}}, wanted {' or '.join(parameters.accept)}"
    written = ~pl.col("has_tokens") & pl.col("origin").is_in(WRITTEN)
    why = (
        pl.when(~said.fill_null("").is_in(parameters.accept))
        .then(pl.format(wanted, said.fill_null("unknown")))
        .when((said == "trainable") & ~pl.col("has_tokens"))
        .then(pl.lit("said to be trainable, but without its tokens"))
        .when(pl.col("flaw").is_not_null())
        .then(pl.col("flaw"))
        .when(ended.is_in(FINISHED) | (ended.is_null() & written))
        .then(None)
        .when(ended.is_null())
        .then(pl.lit("the answer was cut, or nothing says that it ended"))
        .otherwise(pl.format("the answer ended by '{}'", ended))
    )
    return frame.select(why=why)["why"]


RULE = Rule(Fidelity, fidelity)

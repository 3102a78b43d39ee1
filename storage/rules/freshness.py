"""Rows that are not too old, and of those that stay the older ones with less weight.

Age is counted from the moment that the turn's data was looked at, never from the clock. An answer
as old as the half-life weighs half, one twice as old a quarter. People's corrections do not grow
old, unless the rule is told that they do.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl

DAY = 86_400 * 10**9
LEAST = 1e-6
"""No row that stays weighs nothing."""


class Freshness(Parameters):
    days: float | None = Field(None, gt=0)
    """No older than this. None = any age."""
    half_life: float | None = Field(None, gt=0)
    """In days. None = every age weighs the same."""
    corrections: Literal["exempt", "age"] = "exempt"
    unknown: Literal["keep", "drop"] = "keep"
    """Rows that say no time."""


def freshness(frame: "pl.DataFrame", parameters: Freshness, known: Known) -> "pl.Series":
    import polars as pl

    if known.now is None:
        return pl.Series([None] * len(frame), dtype=pl.String)
    most = float("inf") if parameters.days is None else parameters.days
    age = _days(parameters, known.now)
    why = (
        pl.when(pl.col("at").is_null() & (parameters.unknown == "drop"))
        .then(pl.lit("when it was answered is not known"))
        .when(age > most)
        .then(pl.format(f"{{}} days old, at most {most:g} wanted", age.round(1)))
    )
    return frame.select(why=why)["why"]


def weigh(frame: "pl.DataFrame", parameters: Freshness, known: Known) -> "pl.Series":
    import polars as pl

    if known.now is None or parameters.half_life is None:
        return frame["weight"]
    age = _days(parameters, known.now).fill_null(0.0)
    faded = pl.col("weight") * pl.lit(0.5) ** (age / parameters.half_life)
    # Rounded: weights are part of a dataset's id, and powers differ in their last bit by machine.
    return frame.select(weight=faded.round(6).clip(lower_bound=LEAST))["weight"]


def _days(parameters: Freshness, now: int) -> "pl.Expr":
    """Age in days; null = it says no time, and 0 = it does not grow old."""
    import polars as pl

    days = ((now - pl.col("at")) / DAY).clip(lower_bound=0)
    if parameters.corrections == "age":
        return days
    return pl.when(pl.col("corrected")).then(0.0).otherwise(days)


RULE = Rule(Freshness, freshness, weigh=weigh)

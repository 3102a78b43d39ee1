"""Rows whose problem is neither too easy nor too hard for the champion.

A problem that it always solves teaches nothing, and one that it never solves is perhaps wrongly
put. Its pass rate is over all its graded answers that the store has, full marks counting as passed.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl


class Difficulty(Parameters):
    low: float = Field(0.0, ge=0, le=1)
    """Pass rate of the problem, at least."""
    high: float = Field(0.95, ge=0, le=1)
    """At most."""
    answers: int = Field(1, ge=1)
    """Of the champion, graded, from which a pass rate counts as known."""
    unknown: Literal["keep", "drop"] = "keep"
    """Rows of problems that the champion has too few answers to."""

    @model_validator(mode="after")
    def _ordered(self) -> "Difficulty":
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} lies above high = {self.high:g}")
        return self


def difficulty(frame: "pl.DataFrame", parameters: Difficulty, known: Known) -> "pl.Series":
    import polars as pl

    few = pl.col("answers").fill_null(0) < parameters.answers
    least, most = parameters.low - 1e-9, parameters.high + 1e-9
    told = (
        f"the champion passes its problem in {{}}% of {{}} answers, {parameters.low:.0%} to "
        f"{parameters.high:.0%} wanted"
    )
    rate = pl.col("rate")
    why = (
        pl.when(few & (parameters.unknown == "drop"))
        .then(pl.lit("how hard its problem is for the champion is not known"))
        .when(~few & ((rate < least) | (rate > most)))
        .then(pl.format(told, (100 * rate).round().cast(pl.Int64), "answers"))
    )
    return with_rates(frame, known).select(why=why)["why"]


def with_rates(frame: "pl.DataFrame", known: Known) -> "pl.DataFrame":
    """`frame` with the champion's `rate` at each row's problem and how many `answers` it is of;
    null = there are none."""
    import polars as pl

    tries = known.tries
    rates = pl.DataFrame(
        [(name, rate, tries.get(name, 1)) for name, rate in known.pass_rates.items()],
        schema={"problem_id": pl.String, "rate": pl.Float64, "answers": pl.Int64},
        orient="row",
    )
    return frame.join(rates, on="problem_id", how="left", maintain_order="left")


RULE = Rule(Difficulty, difficulty)

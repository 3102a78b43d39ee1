"""Rows whose graders agree, and whose reviewers do.

Grades of one row that lie far apart, or people who say both yes and no, leave open what is right.
What was graded once, or looked at by fewer people than wanted, says nothing about agreement.
"""

from typing import TYPE_CHECKING

from pydantic import Field

from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl


class Agreement(Parameters):
    apart: float | None = Field(0.5, ge=0)
    """How far the lowest and the highest grade of a row may lie apart. None = any distance."""
    graders: int = Field(0, ge=0)
    """Grades that a row must have."""
    share: float = Field(0.67, ge=0.5, le=1)
    """Of the reviewers, who must say the same."""
    reviewers: int = Field(0, ge=0)
    """People who must have looked at a row."""


def agreement(frame: "pl.DataFrame", parameters: Agreement, known: Known) -> "pl.Series":
    import polars as pl

    seen = pl.DataFrame(
        [(trace, people, max(yes, 1 - yes)) for trace, (people, yes) in known.reviews.items()],
        schema={"trace_id": pl.String, "people": pl.Int64, "same": pl.Float64},
        orient="row",
    )
    apart = pl.col("highest_signal") - pl.col("lowest_signal")
    most = float("inf") if parameters.apart is None else parameters.apart
    people, same = pl.col("people").fill_null(0), pl.col("same")
    low, high = pl.col("lowest_signal").round(2), pl.col("highest_signal").round(2)
    why = (
        pl.when(pl.col("signals") < parameters.graders)
        .then(_few(pl.col("signals"), "grade", parameters.graders))
        .when(apart > most + 1e-9)
        .then(pl.format(f"its grades reach from {{}} to {{}}, at most {most:g} apart wanted",
                        low, high))
        .when(people < parameters.reviewers)
        .then(_few(people, "reviewer", parameters.reviewers))
        .when((people > 1) & (same < parameters.share - 1e-9))
        .then(pl.format(f"{{}}% of its {{}} reviewers agree, {parameters.share:.0%} wanted",
                        (100 * same).round().cast(pl.Int64), people))
    )  # fmt: skip
    joined = frame.join(seen, on="trace_id", how="left", maintain_order="left")
    return joined.select(why=why)["why"]


def _few(count: "pl.Expr", what: str, wanted: int) -> "pl.Expr":
    import polars as pl

    told = pl.when(count == 1).then(pl.lit(what)).otherwise(pl.lit(f"{what}s"))
    return pl.format(f"{{}} {{}}, at least {wanted} wanted", count, told)


RULE = Rule(Agreement, agreement)

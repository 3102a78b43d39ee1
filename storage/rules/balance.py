"""No stratum larger than a cap: what the model sees most of is not all that it learns.

A stratum is the rows that agree in some of what is known of them, by default the slice. Which of
them stay is decided by their hash.
"""

from statistics import median_high
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from flywheel.plain import many
from storage.rules.difficulty import with_rates
from storage.rules.rule import Known, Parameters, Rule, listed

if TYPE_CHECKING:
    import polars as pl

Stratum = Literal[
    "slice", "cluster", "difficulty", "conversation", "user", "tenant", "source", "origin",
    "problem_id", "confirmed_by",
]  # fmt: skip
"""cluster: of the traffic that the problem was mined in. difficulty: quarters of the champion's
pass rate at the problem, what it never and always passes apart."""


class Balance(Parameters):
    by: Annotated[tuple[Stratum, ...], BeforeValidator(listed), Field(min_length=1)] = ("slice",)
    most: int | None = Field(None, ge=1)
    """Rows of one stratum, at most. None = as many as the median stratum has."""


def balance(frame: "pl.DataFrame", parameters: Balance, known: Known) -> "pl.Series":
    import polars as pl

    by = parameters.by
    if "cluster" in by:
        frame = frame.with_columns(cluster=_clusters(frame["problem_id"], known))
    if "difficulty" in by:
        frame = with_rates(frame, known).with_columns(difficulty=_quarter())
    sizes = frame.group_by(by).len()["len"].to_list()
    most = parameters.most or (median_high(sizes) if sizes else 1)
    told = ", ".join(f"{name} {{}}" for name in by) + f" has {many(most, 'row')} already"
    values = [pl.col(name).fill_null("None") for name in by]
    # Rows come sorted by hash, so the first ones of a stratum are the hash's choice.
    over = pl.int_range(pl.len()).over(by) >= most
    return frame.select(why=pl.when(over).then(pl.format(told, *values)))["why"]


def _clusters(problems: "pl.Series", known: Known) -> "pl.Series":
    import polars as pl

    named = [known.clusters.get(one) if one else None for one in problems]
    return pl.Series(named, dtype=pl.String)


def _quarter() -> "pl.Expr":
    import polars as pl

    rate = pl.col("rate")
    quarter = (rate * 4).floor().clip(0, 3).cast(pl.Int64) * 25
    return (
        pl.when(rate <= 0).then(pl.lit("never"))
        .when(rate >= 1).then(pl.lit("always"))
        .otherwise(pl.format("{} to {}%", quarter, quarter + 25))
    )  # fmt: skip


RULE = Rule(Balance, balance)

"""A share of rows from the project's earlier accepted datasets, so that none of it is unlearnt.

The rows come into the candidates because a project names this rule (see `tasks.rehearsed`) and pass
every other rule and the leakage check like any row. Here what is learnt anew anyway goes, then what
two earlier datasets both had, then what is above the share, by hash. It is meant to stand last.
"""

from typing import TYPE_CHECKING

from pydantic import Field

from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl


class Rehearsal(Parameters):
    share: float = Field(0.2, gt=0, lt=1)
    """Of the rows that stay, at most."""
    datasets: int = Field(3, ge=1)
    """The latest accepted ones that rows are taken from."""


def rehearsal(frame: "pl.DataFrame", parameters: Rehearsal, _: Known) -> "pl.Series":
    import polars as pl

    old = pl.col("rehearsed").is_not_null()
    fresh = frame.filter(~old)
    room = int(parameters.share / (1 - parameters.share) * len(fresh) + 1e-9)
    again = old & pl.col("content").is_in(fresh["content"].implode())
    # Rows come sorted by hash, so the first ones are the hash's choice.
    twice = old & ~again & (pl.int_range(pl.len()).over("rehearsed_or_not", "content") > 0)
    marked = frame.with_columns(rehearsed_or_not=old)
    place = (old & ~again & ~twice).cast(pl.Int64).cum_sum()
    why = (
        pl.when(again).then(pl.lit("it is learnt anew in this dataset"))
        .when(twice).then(pl.lit("another earlier dataset had it too"))
        .when(old & (place > room))
        .then(pl.lit(f"{room} rows are rehearsed already, {parameters.share:.0%} of all"))
    )  # fmt: skip
    return marked.select(why=why)["why"]


RULE = Rule(Rehearsal, rehearsal)

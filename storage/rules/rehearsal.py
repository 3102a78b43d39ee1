"""A share of rows from the project's earlier accepted datasets, so that none of it is unlearnt.

The rows come into the candidates because a project names this rule (see `tasks.rehearsed`) and pass
every other rule and the leakage check like any row. Here what is learnt anew anyway goes, then what
two earlier datasets both had, then what is above the share, by hash. It is meant to stand last.
"""

from typing import TYPE_CHECKING

from pydantic import Field

from flywheel.plain import many
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

    share = parameters.share
    old = pl.col("rehearsed").is_not_null()
    room = int(share / (1 - share) * frame.select((~old).sum()).item() + 1e-9)
    fresh = frame.filter(~old)["content"].implode()
    again = old & pl.col("content").is_in(fresh)
    twice = old & ~again & (pl.int_range(pl.len()).over("content", old) > 0)
    asked = frame.select(again=again, twice=twice, old=old, pair=pl.coalesce("pair_id", "row_id"))
    why = (
        pl.when("again").then(pl.lit("it is learnt anew in this dataset"))
        .when("twice").then(pl.lit("another earlier dataset had it too"))
        .when(pl.col("old") & (pl.col("filled") > room))
        .then(pl.lit(f"{many(room, 'row is', 'rows are')} rehearsed, {share:.0%} of all"))
    )  # fmt: skip
    return _filled(asked).select(why=why)["why"]


def _filled(asked: "pl.DataFrame") -> "pl.DataFrame":
    """With how many rows would be rehearsed, were each `pair` of rehearsed rows let in up to this
    one. Rows come sorted by hash, so the pair that comes first is the hash's choice."""
    import polars as pl

    counts = pl.col("old") & ~pl.col("again") & ~pl.col("twice")
    return (
        asked.with_row_index("place")
        .with_columns(counts=counts)
        .with_columns(first=pl.col("place").min().over("pair", "counts"))
        .sort("first", "place")
        .with_columns(filled=pl.col("counts").cast(pl.Int64).cum_sum())
        .with_columns(filled=pl.col("filled").max().over("pair", "counts"))
        .sort("place")
    )


RULE = Rule(Rehearsal, rehearsal)

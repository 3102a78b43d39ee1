"""At most so many answers a problem, so that easy problems do not crowd out the others.

The best rewarded stay; among equals the row's hash decides, or its length, never the order in which
rows came. A pair counts as one; other labelled answers are counted by label.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl


class PerProblem(Parameters):
    keep: int = Field(1, ge=1)
    prefer: Literal["any", "shortest"] = "any"
    """Among equally rewarded answers: by hash, or the one of fewest tokens."""


def per_problem(frame: "pl.DataFrame", parameters: PerProblem, _: Known) -> "pl.Series":
    import polars as pl

    paired, shortest = pl.col("pair_id").is_not_null(), parameters.prefer == "shortest"
    group = ("problem", "kind")
    ordered = (
        frame.with_row_index("place")
        .select(
            "place",
            # A row of no known problem belongs with those of the same prompt.
            problem=pl.coalesce("problem_id", "prompt"),
            kind=pl.when(~paired).then("label"),
            counted=pl.coalesce("pair_id", pl.format("row {}", "place")),
            reward=pl.col("reward").fill_nan(None).fill_null(float("-inf")),
            tokens=pl.col("answer_tokens") if shortest else pl.lit(0),
        )
        # Rows come sorted by hash, so the place is the hash's.
        .sort("reward", "tokens", "place", descending=[True, False, False])
        .with_row_index("at")
        .with_columns(first=pl.col("at").min().over(*group, "counted"))
        .with_columns(rank=pl.col("first").rank("dense").over(*group))
        .sort("place")
    )
    told = f"its problem has {parameters.keep} other answers already"
    why = pl.when(pl.col("rank") > parameters.keep).then(pl.lit(told))
    return ordered.select(why=why)["why"]


RULE = Rule(PerProblem, per_problem)

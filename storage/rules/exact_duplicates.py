"""Of rows with the same prompt and the same answer, one; of labelled ones one a label and pair.

Copies arrive under other ids (a re-export, a second source, a second sample), so content decides.
The copy that is worth most stays: with tokens, confirmed, graded, rewarded highest.
"""

from typing import TYPE_CHECKING

from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl


class ExactDuplicates(Parameters):
    pass


def exact_duplicates(frame: "pl.DataFrame", _: ExactDuplicates, __: Known) -> "pl.Series":
    import polars as pl

    best = worth_first(frame.with_row_index("place")).select(
        "place",
        stays=pl.col("place").first().over("content"),
        trace=pl.col("trace_id").first().over("content"),
    )
    copy = pl.col("place") != pl.col("stays")
    why = pl.when(copy).then(pl.format("same prompt and answer as trace {}", "trace"))
    return best.sort("place").select(why=why)["why"]


def worth_first(frame: "pl.DataFrame") -> "pl.DataFrame":
    """Rows with a `place`, what is worth most first; among equals by place."""
    import polars as pl

    return frame.sort(
        pl.col("rehearsed").is_null(),
        "has_tokens",
        pl.col("confirmed_by").is_not_null(),
        pl.col("reward").fill_nan(None).fill_null(float("-inf")),
        pl.col("place"),
        descending=[True, True, True, True, False],
    )


RULE = Rule(ExactDuplicates, exact_duplicates)

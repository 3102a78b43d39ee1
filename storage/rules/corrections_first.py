"""Of one prompt a person's correction stands instead of the model's answers.

Where people said what the answer should have been, what the model said is no second opinion.
Answers that are labelled as bad stay, and so do pairs: they are what the correction is compared
with.
"""

from typing import TYPE_CHECKING, Literal

from flywheel.rows import GOOD
from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl


class CorrectionsFirst(Parameters):
    of: Literal["prompt", "problem"] = "prompt"
    """What an answer and its correction must have in common; a row of no known problem is matched
    by its prompt."""


def corrections_first(frame: "pl.DataFrame", parameters: CorrectionsFirst, _: Known) -> "pl.Series":
    import polars as pl

    prompt = pl.col("prompt")
    asked = prompt if parameters.of == "prompt" else pl.coalesce("problem_id", prompt)
    keyed = frame.with_columns(asked.alias("asked"))
    corrections = (
        keyed.filter("corrected")
        .group_by("asked", maintain_order=True)
        .agg(pl.col("trace_id").first().alias("correction"))
    )
    label = pl.col("label")
    learnt = pl.col("pair_id").is_null() & (label.is_null() | label.is_in(list(GOOD)))
    instead = ~pl.col("corrected") & learnt & pl.col("correction").is_not_null()
    told = pl.format("a person's correction stands instead: trace {}", "correction")
    joined = keyed.join(corrections, on="asked", how="left", maintain_order="left")
    return joined.select(why=pl.when(instead).then(told))["why"]


RULE = Rule(CorrectionsFirst, corrections_first)

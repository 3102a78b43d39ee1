"""The model's own answers only where something outside the model says that they are right.

A model that learns from what it merely believes drifts. Demonstrations are people's, and pass.
"""

from typing import TYPE_CHECKING

from flywheel.records import Origin
from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl


class Confirmed(Parameters):
    by: tuple[str, ...] = ()
    """What counts as confirmation (feedback, ground_truth, code, human …). () = any of them."""
    exempt: tuple[Origin, ...] = ("demonstration",)
    """Origins that need none."""


def confirmed(frame: "pl.DataFrame", parameters: Confirmed, _: Known) -> "pl.Series":
    import polars as pl

    by = pl.col("confirmed_by").fill_null("")
    needs_none = pl.col("origin").is_in(parameters.exempt) | (by == "human")
    counts = by.is_in(parameters.by) if parameters.by else pl.lit(True)
    why = (
        pl.when(needs_none)
        .then(None)
        .when(by == "")
        .then(pl.lit("the model's own answer, confirmed by nothing outside it"))
        .when(~counts)
        .then(pl.format("confirmed by {}, wanted " + " or ".join(parameters.by), by))
    )
    return frame.select(why=why)["why"]


RULE = Rule(Confirmed, confirmed)

"""Rows whose reward is suspect: a suspicion, never a proof, and each reason says so.

Four signs: its grades are at odds; people said the opposite of what code or a judge measured; the
same answer to the same prompt was mostly rewarded otherwise; and a classifier that never saw the
row is sure of the opposite (`storage.rules.confident`). Put it before `min_reward`: among good rows
alone nothing can be told apart.
"""

from typing import TYPE_CHECKING

from pydantic import Field

from flywheel.rows import GOOD
from storage.rules.confident import Confident, doubted
from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl


class LabelNoise(Parameters):
    apart: float | None = Field(1.0, gt=0)
    """Lowest and highest grade of a row that lie so far apart are at odds. None = never: rewards
    that measure different things may."""
    good: float = 0.5
    """Reward from which an answer counts as good."""
    sure: float = Field(0.9, gt=0.5, lt=1)
    """Probability of the opposite from which the classifier counts as sure."""
    most: float = Field(0.1, ge=0, le=1)
    """Share of the rows that the classifier may call suspect; the surest first. 0 = it is not
    asked."""
    least: int = Field(500, ge=20)
    """Graded rows without which it is not asked."""


def label_noise(frame: "pl.DataFrame", parameters: LabelNoise, _: Known) -> "pl.Series":
    import polars as pl

    label = pl.col("label")
    good = pl.when(label.is_null()).then(pl.col("reward") >= parameters.good)
    judged = frame.with_columns(good=good.otherwise(label.is_in(list(GOOD))))
    plain = (
        pl.when(_at_odds(parameters)).then(_spread())
        .when(_gainsaid(parameters)).then(pl.format(
            "suspicion: people say {} where it measures {}",
            pl.col("said").round(2), pl.col("measured").round(2)))
        .when(_outvoted()).then(pl.lit(
            "suspicion: the same answer to the same prompt was mostly rewarded otherwise"))
    )  # fmt: skip
    judged = judged.with_columns(why=plain)
    if not parameters.most:
        return judged["why"]
    asked = Confident(sure=parameters.sure, most=parameters.most, least=parameters.least)
    doubt = judged.with_columns(doubt=doubted(judged, asked))
    told = pl.format(
        "suspicion: it counts as {}, answers like it do in {}% of cases",
        pl.when("good").then(pl.lit("good")).otherwise(pl.lit("bad")),
        (100 * pl.col("doubt")).round(1),
    )
    return doubt.select(why=pl.coalesce("why", pl.when(pl.col("doubt").is_not_null()).then(told)))[
        "why"
    ]


def _at_odds(parameters: LabelNoise) -> "pl.Expr":
    import polars as pl

    apart = pl.col("highest_signal") - pl.col("lowest_signal")
    return apart >= parameters.apart - 1e-9 if parameters.apart is not None else pl.lit(False)


def _spread() -> "pl.Expr":
    import polars as pl

    low, high = pl.col("lowest_signal").round(2), pl.col("highest_signal").round(2)
    return pl.format("suspicion: its grades disagree, from {} to {}", low, high)


def _gainsaid(parameters: LabelNoise) -> "pl.Expr":
    import polars as pl

    said, measured = pl.col("said"), pl.col("measured")
    return (said >= parameters.good) != (measured >= parameters.good)


def _outvoted() -> "pl.Expr":
    """Whether most rows of the same content have the other verdict; of two at odds both are."""
    import polars as pl

    # A label is part of the content: only rows without one can be at odds about it.
    share = pl.col("good").cast(pl.Float64).mean().over("content")
    mine = pl.when("good").then(share).otherwise(1 - share)
    return pl.col("label").is_null() & pl.col("good").is_not_null() & (mine <= 0.5)


RULE = Rule(LabelNoise, label_noise, needs=("said", "measured", "sketch"))

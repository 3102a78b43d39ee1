"""The self-training guard: a model's answers only where something outside the model confirms them.

A model that learns from what it merely believes drifts. Outside are a known truth, code, feedback
and people. The rest may be admitted up to a share of the dataset, none by default, and never on the
word of a judge of the same lineage alone: a judge that stands on the base model that answered, or
whose model is not known, is the model's own belief again. What people wrote passes.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from flywheel.records import Origin
from storage.rules.rule import Known, Parameters, Rule, listed

if TYPE_CHECKING:
    import polars as pl


class SelfTraining(Parameters):
    by: Annotated[tuple[str, ...], BeforeValidator(listed)] = ()
    """What counts as confirmation (feedback, ground_truth, code, human …). () = any of them."""
    exempt: tuple[Origin, ...] = ("demonstration",)
    """Origins that need none."""
    share: float = Field(0.0, ge=0, lt=1)
    """Of the rows that stay, how many may be answers that nothing outside confirmed."""
    others: Literal["confirm", "pass"] = "confirm"
    """Whether answers of models that are not this project's need confirmation too."""


def self_training(frame: "pl.DataFrame", parameters: SelfTraining, known: Known) -> "pl.Series":
    import polars as pl

    by, own = pl.col("confirmed_by").fill_null(""), _own(known)
    written = pl.col("origin").is_in(parameters.exempt) | pl.col("corrected")
    passes = written | ~own if parameters.others == "pass" else written
    counts = by.is_in([*parameters.by, "human"]) if parameters.by else (by != "") | _outside()
    alone = (pl.col("judges") > 0) & (pl.col("judges") == pl.col("signals")) & _related(known)
    never = alone | pl.col("reward").is_null()
    judged = frame.with_columns(unsure=~(passes | counts), never=never)
    sure = len(judged) - int(judged["unsure"].sum())
    room = int(parameters.share / (1 - parameters.share) * sure + 1e-9)
    open_ = pl.col("unsure") & ~pl.col("never")
    # Rows come in the order of their hashes: the first of them are the hash's choice.
    within = open_ & (open_.cast(pl.Int64).cum_sum() <= room)
    told = _told(parameters, own, alone)
    if room:
        told = pl.when(open_).then(pl.format(f"{{}}; {room} such rows stay", told)).otherwise(told)
    return judged.select(why=pl.when(pl.col("unsure") & ~within).then(told))["why"]


def _own(known: Known) -> "pl.Expr":
    """Whether the project's own models answered; where nobody says who did, they did."""
    import polars as pl

    ours = pl.col("answered_by").is_in(_ours(known)).fill_null(True)
    return (pl.col("origin") == "rollout") | ours


def _outside() -> "pl.Expr":
    """People or feedback said something of it, though no reward rests on that."""
    import polars as pl

    return pl.col("confirmed_by").is_null() & pl.col("outside")


def _related(known: Known) -> "pl.Expr":
    """Whether every judge of it is of the lineage of what answered, or of an unknown one."""
    import polars as pl

    name = r"([^/:]*)(:[^/]*)?/*$"  # apart from whose it is, its tag, and how it is spelled
    lineage = pl.element().str.to_lowercase().str.extract(name)
    ours = pl.Series(_ours(known)).str.to_lowercase().str.extract(name).to_list()
    related = lineage.is_in(["unknown", "", *ours])
    return pl.col("judged_by").list.eval(related).list.all()


def _ours(known: Known) -> list[str]:
    return sorted({*known.deployments, known.project, known.base or known.project})


def _told(parameters: SelfTraining, own: "pl.Expr", alone: "pl.Expr") -> "pl.Expr":
    import polars as pl

    by, judges = pl.col("confirmed_by").fill_null(""), pl.col("judged_by").list.join(", ")
    whose = pl.when(own).then(pl.lit("the model's own answer"))
    named = whose.otherwise(pl.lit("another model's answer"))
    wanted = " or ".join(parameters.by)
    return (
        pl.when(by != "").then(pl.format(f"confirmed by {{}}, wanted {wanted}", by))
        .when(alone).then(
            pl.format("{}, judged by its own lineage alone ({})", named, judges))
        .otherwise(pl.format("{}, confirmed by nothing outside it", named))
    )  # fmt: skip


RULE = Rule(SelfTraining, self_training)

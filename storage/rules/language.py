"""Rows in the languages that the model is for.

The user's own words and the answer are identified together; what is too short, or is code, has no
language that could be told, and stays unless the rule is told otherwise.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from storage.rules.rule import Known, Parameters, Rule, listed

if TYPE_CHECKING:
    import polars as pl


class Language(Parameters):
    keep: Annotated[tuple[str, ...], BeforeValidator(listed), Field(min_length=1)]
    """ISO 639-1 codes: "en", "de", "zh" …"""
    unknown: Literal["keep", "drop"] = "keep"


def language(frame: "pl.DataFrame", parameters: Language, _: Known) -> "pl.Series":
    import polars as pl

    wanted, spoken = " or ".join(parameters.keep), pl.col("language")
    why = (
        pl.when(spoken.is_null() & (parameters.unknown == "drop"))
        .then(pl.lit("its language could not be told"))
        .when(~spoken.is_in(parameters.keep))
        .then(pl.format(f"in {{}}, wanted {wanted}", spoken))
    )
    return frame.select(why=why)["why"]


RULE = Rule(Language, language, needs=("language",))

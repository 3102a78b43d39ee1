"""No stratum larger than a cap: what the model sees most of is not all that it learns.

A stratum is the rows that agree in some of their fields, by default the slice. Which of them stay
is decided by their hash.
"""

from statistics import median_high
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl

Stratum = Literal["slice", "conversation", "user", "origin", "problem_id", "confirmed_by"]


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class Balance(Parameters):
    by: Annotated[tuple[Stratum, ...], BeforeValidator(_listed), Field(min_length=1)] = ("slice",)
    most: int | None = Field(None, ge=1)
    """Rows of one stratum, at most. None = as many as the median stratum has."""


def balance(frame: "pl.DataFrame", parameters: Balance, _: Known) -> "pl.Series":
    import polars as pl

    by = parameters.by
    sizes = frame.group_by(by).len()["len"].to_list()
    most = parameters.most or (median_high(sizes) if sizes else 1)
    told = ", ".join(f"{name} {{}}" for name in by) + f" has {most} rows already"
    values = [pl.col(name).fill_null("None") for name in by]
    # Rows come sorted by hash, so the first ones of a stratum are the hash's choice.
    over = pl.int_range(pl.len()).over(by) >= most
    return frame.select(why=pl.when(over).then(pl.format(told, *values)))["why"]


RULE = Rule(Balance, balance)

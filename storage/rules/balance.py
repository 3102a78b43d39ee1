"""No stratum larger than a cap: what the model sees most of is not all that it learns.

A stratum is the rows that agree in some of their fields, by default the slice. Which of them stay
is decided by their hash.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median_high
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from flywheel.rows import TrainingRow
from storage.rules.rule import Parameters, Rule, Verdicts

Stratum = Literal["slice", "conversation", "user", "origin", "problem_id", "confirmed_by"]


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class Balance(Parameters):
    by: Annotated[tuple[Stratum, ...], BeforeValidator(_listed), Field(min_length=1)] = ("slice",)
    most: int | None = Field(None, ge=1)
    """Rows of one stratum, at most. None = as many as the median stratum has."""


def balance(rows: Sequence[TrainingRow], parameters: Balance) -> Verdicts:
    strata: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        strata[tuple(getattr(row, name) for name in parameters.by)].append(place)
    verdicts: Verdicts = [None] * len(rows)
    if not strata:
        return verdicts
    most = parameters.most or median_high(len(places) for places in strata.values())
    for stratum, places in strata.items():
        named = ", ".join(
            f"{name} {value}" for name, value in zip(parameters.by, stratum, strict=True)
        )
        for place in places[most:]:  # rows come sorted by hash
            verdicts[place] = f"{named} has {most} rows already"
    return verdicts


RULE = Rule(Balance, balance)

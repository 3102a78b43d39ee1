"""Features: further columns of candidate rows, made of the wide rows while these stream past.

Only what a rule asks for in its `needs` is computed. Each depends on its own row and on `Known`
alone, so batches may be cut anywhere. To add one: its function, and its line in the table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flywheel.rows import TrainingRow
from storage.rules.rule import Known
from storage.sketch import sketch
from storage.spoken_in import language_of

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Feature:
    type: str
    """A polars type; "List(…)" of one."""
    of: Callable[[Sequence[TrainingRow], Known], Sequence[Any]]
    """A batch of rows in; values parallel to them out, None = not known."""


def _answer(rows: Sequence[TrainingRow], _: Known) -> list[str]:
    return [row.completion.text.lower() for row in rows]


def _language(rows: Sequence[TrainingRow], _: Known) -> list[str | None]:
    return [language_of(row) for row in rows]


def _sketch(rows: Sequence[TrainingRow], _: Known) -> list[list[int]]:
    return [sketch(row) for row in rows]


def _mean_of(*kinds: str) -> Callable[[Sequence[TrainingRow], Known], list[float | None]]:
    def of(rows: Sequence[TrainingRow], _: Known) -> list[float | None]:
        found = [
            [one.value for one in row.signals
             if one.kind in kinds and one.weight and one.value is not None]
            for row in rows
        ]  # fmt: skip
        return [sum(values) / len(values) if values else None for values in found]

    return of


FEATURES: dict[str, Feature] = {
    "answer": Feature("String", _answer),
    "language": Feature("String", _language),
    "measured": Feature("Float64", _mean_of("code", "judge")),
    "said": Feature("Float64", _mean_of("human", "feedback")),
    "sketch": Feature("List(UInt32)", _sketch),
}
"""answer: its plain text, in lower case. language: null = it cannot be told. measured, said: mean
of the grades by code and judges, and of people's and feedback's. sketch: hashed words of what was
asked and answered."""


def columns_of(
    rows: Sequence[TrainingRow], features: Mapping[str, Feature], known: Known
) -> "list[pl.Series]":
    """A column for each feature, parallel to `rows`."""
    from storage.narrow import column

    return [
        column(name, list(feature.of(rows, known)), feature.type)
        for name, feature in features.items()
    ]

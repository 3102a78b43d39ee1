"""Features: further columns of candidate rows, made of the wide rows while these stream past.

Only what a rule asks for in its `needs` is computed. Each depends on its own row and on `Known`
alone, so batches may be cut anywhere. To add one: its function, and its line in the table.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flywheel.rows import TrainingRow
from storage.rules.rule import Known

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


FEATURES: dict[str, Feature] = {
    "answer": Feature("String", _answer),
}
"""answer: its plain text, in lower case."""


def with_features(
    frame: "pl.DataFrame", rows: Sequence[TrainingRow], names: Iterable[str], known: Known
) -> "pl.DataFrame":
    """`frame`, parallel to `rows`, with the named features as columns beside the others."""
    import polars as pl

    from storage.narrow import polars_type

    made = [
        pl.Series(name, list(FEATURES[name].of(rows, known)), polars_type(FEATURES[name].type))
        for name in sorted(set(names))
    ]
    return frame.with_columns(made) if made else frame

"""The model's own answers only where something outside the model says that they are right.

A model that learns from what it merely believes drifts. Demonstrations are people's, and pass.
"""

from collections.abc import Sequence

from flywheel.records import Origin
from flywheel.rows import TrainingRow
from storage.rules.rule import Parameters, Rule, Verdicts


class Confirmed(Parameters):
    by: tuple[str, ...] = ()
    """What counts as confirmation (feedback, ground_truth, code, human …). () = any of them."""
    exempt: tuple[Origin, ...] = ("demonstration",)
    """Origins that need none."""


def confirmed(rows: Sequence[TrainingRow], parameters: Confirmed) -> Verdicts:
    return [_verdict(row, parameters) for row in rows]


def _verdict(row: TrainingRow, parameters: Confirmed) -> str | None:
    if row.origin in parameters.exempt or row.confirmed_by == "human":
        return None
    if not row.confirmed_by:
        return "the model's own answer, confirmed by nothing outside it"
    if parameters.by and row.confirmed_by not in parameters.by:
        return f"confirmed by {row.confirmed_by}, wanted {' or '.join(parameters.by)}"
    return None


RULE = Rule(Confirmed, confirmed)

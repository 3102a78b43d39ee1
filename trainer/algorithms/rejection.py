"""Rejection-sampled fine-tuning: likelihood of the champion's own answers that curation kept.

Trains on the very token ids that were sampled, and only on answers that ended. Demonstrations among
the rows were not sampled by anyone: they are rendered. (Yuan et al. 2023, arXiv 2308.01825.)
"""

from functools import partial

from flywheel.rows import TrainingRow
from trainer.algorithms.contract import Context, Prepared
from trainer.algorithms.rows import prepare, rendered, sampled
from trainer.render import Rendering
from trainer.samples import Sample


def rejection(rows: list[TrainingRow], context: Context) -> Prepared:
    return prepare(rows, partial(_sample, rendering=context.rendering))


def _sample(row: TrainingRow, rendering: Rendering) -> Sample:
    if row.tokens is None and row.origin == "demonstration":
        return rendered(row, rendering)
    return sampled(row, rendering)

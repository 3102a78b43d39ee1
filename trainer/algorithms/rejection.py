"""Rejection-sampled fine-tuning: likelihood of the champion's own answers that curation kept.

Trains on the very token ids that were sampled, and only on answers that ended. Demonstrations among
the rows were not sampled by anyone: they are rendered. (Yuan et al. 2023, arXiv 2308.01825.)
"""

from functools import partial

from flywheel.rows import TrainingRow
from trainer.algorithms.rows import Layout, Prepared, prepare, rendered, sampled
from trainer.samples import Sample


def rejection(rows: list[TrainingRow], layout: Layout) -> Prepared:
    return prepare(rows, partial(_sample, layout=layout))


def _sample(row: TrainingRow, layout: Layout) -> Sample:
    if row.tokens is None and row.origin == "demonstration":
        return rendered(row, layout)
    return sampled(row, layout)

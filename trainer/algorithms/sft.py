"""Supervised fine-tuning: every row is rendered from its messages, whatever it was sampled from."""

from functools import partial

from flywheel.rows import TrainingRow
from trainer.algorithms.rows import Layout, Prepared, prepare, rendered


def sft(rows: list[TrainingRow], layout: Layout) -> Prepared:
    return prepare(rows, partial(rendered, layout=layout))

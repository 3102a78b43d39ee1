"""Supervised fine-tuning: every row is rendered from its messages, whatever it was sampled from."""

from functools import partial

from flywheel.rows import TrainingRow
from trainer.algorithms.contract import Context, Prepared
from trainer.algorithms.rows import prepare, rendered


def sft(rows: list[TrainingRow], context: Context) -> Prepared:
    return prepare(rows, partial(rendered, rendering=context.rendering))

"""Supervised fine-tuning: every row is rendered from its messages, whatever it was sampled from."""

from functools import partial

from flywheel.rows import TrainingRow
from trainer.algorithms.rows import Prepared, prepare, rendered
from trainer.render import Rendering


def sft(rows: list[TrainingRow], rendering: Rendering) -> Prepared:
    return prepare(rows, partial(rendered, rendering=rendering))

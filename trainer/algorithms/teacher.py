"""Learning from a teacher's answers: the likelihood of what curation kept of them.

A teacher that reads and writes this model's tokens is learnt from token by token, as it sampled
them; any other's answers are rendered from their messages. No ratio is taken: a teacher's
distribution lies too far from the student's for one to mean anything. (Kim and Rush 2016,
"Sequence-Level Knowledge Distillation", arXiv 1606.07947.)
"""

from functools import partial

from flywheel.rows import TrainingRow
from trainer.algorithms.contract import Context, Prepared
from trainer.algorithms.rows import answered, prepare


def teacher(rows: list[TrainingRow], context: Context) -> Prepared:
    return prepare(rows, partial(answered, rendering=context.rendering))

"""KTO: single answers that somebody liked, or did not, without a second one to compare them with.

Ethayarajh et al. 2024, arXiv 2402.01306. The sign of a Sample's advantages says which: +1
desirable, -1 undesirable. Chosen and rejected answers of pairs count as such. Both kinds weigh the
same in sum (the paper asks for a ratio of 1 to 4/3), so that what is rare is not drowned.
"""

from functools import partial

from flywheel.errors import BadRecord
from flywheel.rows import GOOD, TrainingRow
from trainer.algorithms.contract import Context, Prepared
from trainer.algorithms.rows import answered, balanced, compared, prepare
from trainer.render import Rendering
from trainer.samples import Sample


def kto(rows: list[TrainingRow], context: Context) -> Prepared:
    return balanced(prepare(rows, partial(_sample, rendering=context.rendering)), rows)


def _sample(row: TrainingRow, rendering: Rendering) -> Sample:
    if row.label is None:
        raise BadRecord("nobody said whether it is desirable")
    sign = 1.0 if row.label in GOOD else -1.0
    return compared(answered(row, rendering), "kto", sign, weight=row.weight)

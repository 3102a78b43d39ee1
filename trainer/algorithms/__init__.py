"""Algorithms: each turns a dataset's rows into Samples. The loop knows none of them."""

from collections.abc import Callable

from flywheel.rows import TrainingRow
from trainer.algorithms.rejection import rejection
from trainer.algorithms.rows import Prepared
from trainer.algorithms.sft import sft
from trainer.render import Rendering

Algorithm = Callable[[list[TrainingRow], Rendering], Prepared]

ALGORITHMS: dict[str, Algorithm] = {
    "rejection": rejection,
    "sft": sft,
}

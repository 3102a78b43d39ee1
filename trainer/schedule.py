"""What is trained on when, and how fast: pure functions of the seed, the rows' ids and the step.

Nothing is drawn from a generator, so a run that resumes at a step needs no state to go on with the
same batches and learning rates.
"""

import math
from collections.abc import Sequence
from itertools import chain, pairwise

from flywheel.ids import digest
from flywheel.train_section import TrainSection
from trainer.samples import Sample


def batches(samples: Sequence[Sample], *, batch: int, epochs: int, seed: int) -> list[list[int]]:
    """Indices into `samples`, one list an optimizer step.

    Every epoch has every sample once, in an order of its own that does not depend on the order
    given; the samples of a pair are in one step. An epoch that `batch` does not divide is cut into
    steps of nearly equal size: a last step of one or two rows would be all noise at the full
    learning rate.
    """
    plan: list[list[int]] = []
    units: dict[str | int, list[int]] = {}
    for index, sample in enumerate(samples):
        units.setdefault(sample.pair_id or index, []).append(index)
    for epoch in range(epochs):
        keys = [(digest(seed, epoch, each.pair_id or each.row_id), each.trace_id or "")
                for each in samples]  # fmt: skip
        order = sorted(units.values(), key=lambda unit: (keys[unit[0]], unit))
        steps = min(-(-len(samples) // batch), len(order))
        cuts = [len(order) * step // steps for step in range(steps + 1)]
        plan += [list(chain.from_iterable(order[start:end])) for start, end in pairwise(cuts)]
    return plan


def learning_rate(step: int, steps: int, settings: TrainSection) -> float:
    """Of step 1 … `steps`: linear up to its peak at the last step of the warm-up, then as the
    schedule says; never 0.

    With the share of the steps after the warm-up that are left, this one counted, r in (0, 1]:
    linear r; cosine (1 - cos πr) / 2 (Loshchilov & Hutter 2017, "SGDR", eq. 5, without restarts).
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    left = (steps - step + 1) / max(1, steps - warmup)
    match settings.schedule:
        case "linear":
            return peak * left
        case "cosine":
            return peak * (1 - math.cos(math.pi * left)) / 2
        case "constant":
            return peak

"""What is trained on when, and how fast: pure functions of the seed, the rows' ids and the step.

Nothing is drawn from a generator, so a run that resumes at a step needs no state to go on with the
same batches and learning rates.
"""

from collections.abc import Sequence
from itertools import pairwise

from flywheel.ids import digest
from trainer.samples import Sample


def batches(samples: Sequence[Sample], *, batch: int, epochs: int, seed: int) -> list[list[int]]:
    """Indices into `samples`, one list an optimizer step.

    Every epoch has every sample once, in an order of its own that does not depend on the order
    given. An epoch that `batch` does not divide is cut into steps of nearly equal size: a last step
    of one or two rows would be all noise at the full learning rate.
    """
    plan: list[list[int]] = []
    for epoch in range(epochs):
        keys = [(digest(seed, epoch, each.row_id), each.trace_id or "") for each in samples]
        order = sorted(range(len(samples)), key=lambda index: (keys[index], index))
        steps = -(-len(order) // batch)
        cuts = [len(order) * step // steps for step in range(steps + 1)]
        plan += [order[start:end] for start, end in pairwise(cuts)]
    return plan


def learning_rate(step: int, *, steps: int, warmup: int, peak: float) -> float:
    """Of step 1 … `steps`: linear up to `peak` at step `warmup`, then linear down; never 0."""
    if step <= warmup:
        return peak * step / warmup
    return peak * (steps - step + 1) / max(1, steps - warmup)

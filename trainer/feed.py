"""What a run trains on, step by step: a dataset's samples in epochs, or batches as they come.

The loop asks a feed for a step's samples and tells it when the step's weights are there. A feed
that is asked for the same step again, after a kill, gives the same samples.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from flywheel.train_section import TrainSection
from trainer.fitting import fit, units_of
from trainer.samples import Sample
from trainer.schedule import batches


class Fed(NamedTuple):
    samples: tuple[Sample, ...]
    report: dict[str, float | None]
    """What was measured where the samples were made. None = not known."""


class Feed(Protocol):
    steps: int
    """Of the whole run, for the schedule of learning rates."""

    def take(self, step: int) -> Fed | None:
        """The samples of optimizer step `step`, from 1. None = the run ends before it."""

    def trained(self, step: int) -> None:
        """The model's weights are those after `step`. Told again after a kill."""


class Epochs:
    """A dataset's samples, each once an epoch, in an order of the seed."""

    def __init__(self, samples: Sequence[Sample], settings: TrainSection) -> None:
        """
        Raises:
            UsageError: a sample, or a pair, is longer than a micro-batch.
        """
        for unit in units_of(samples):
            if sum(len(sample.token_ids) for sample in unit) > settings.micro_tokens:
                list(fit([unit], settings.micro_tokens))
        self._samples = samples
        self._plan = batches(
            samples, batch=settings.batch, epochs=settings.epochs, seed=settings.seed
        )
        self.steps = len(self._plan)

    def take(self, step: int) -> Fed | None:
        if step > self.steps:
            return None
        return Fed(tuple(self._samples[index] for index in self._plan[step - 1]), {})

    def trained(self, step: int) -> None:
        pass

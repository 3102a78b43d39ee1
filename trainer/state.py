"""A run's state between two optimizer steps: weights, optimizer, random numbers, how far it is.

Saved as a checkpoint and taken up from one to the same bits, over any number of processes.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from flywheel.failpoints import failpoint
from flywheel.train_section import TrainSection
from trainer.checkpoints import (
    Checkpoint,
    Progress,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from trainer.parallel import like, whole
from trainer.weights import Weights


class State:
    def __init__(self, weights: Weights, settings: TrainSection, folder: Path, job: str) -> None:
        """At the run's beginning, or where the newest checkpoint of `job` in `folder` left it."""
        self.weights, self.folder = weights, folder
        self.optimizer = torch.optim.AdamW(
            weights.learning.values(), lr=0.0, weight_decay=settings.weight_decay
        )
        self.progress = Progress(job=job)
        newest = weights.ranks.agreed(lambda: newest_checkpoint(folder, job))
        if newest is not None:
            self._take_up(load_checkpoint(newest))

    def save(self) -> None:
        failpoint("train.before_checkpoint")
        checkpoint = Checkpoint(
            progress=self.progress,
            weights=_whole(self.weights.learning),
            optimizer={
                f"{index}.{what}": whole(value)
                for index, values in self.optimizer.state_dict()["state"].items()
                for what, value in values.items()
            },
            random=torch.get_rng_state(),
            average=None if self.weights.average is None else _whole(self.weights.average),
        )
        if self.weights.ranks.first:
            save_checkpoint(self.folder, checkpoint)
        failpoint("train.after_checkpoint")

    def _take_up(self, checkpoint: Checkpoint) -> None:
        parameters = list(self.weights.learning.values())
        self.weights.put(
            {name: like(p, checkpoint.weights[name]) for name, p in self.weights.learning.items()}
        )
        if self.weights.average is not None and checkpoint.average is not None:
            for name, tensor in self.weights.average.items():
                tensor.copy_(like(tensor, checkpoint.average[name]))
        state: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in checkpoint.optimizer.items():
            number, what = key.split(".", 1)
            parameter = parameters[int(number)]
            fits = value.shape == parameter.shape
            state.setdefault(int(number), {})[what] = like(parameter, value) if fits else value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        torch.set_rng_state(checkpoint.random)
        self.progress = checkpoint.progress


def _whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: whole(each) for name, each in tensors.items()}

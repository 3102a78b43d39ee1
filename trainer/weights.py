"""What learns in a model, from a run's start to what it leaves behind.

An adapter (LoRA) on frozen base weights. Whoever trains, probes or saves asks here and needs not
know which weights those are.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flywheel.errors import UsageError
from flywheel.project import TrainSection
from trainer.models import add_adapter, save_adapter, use_attention

ADAPTER = "candidate"
"""Its name while it is trained."""


@dataclass(frozen=True)
class Weights:
    model: Any
    kind: Literal["adapter", "model"]
    """The folder's name that they are saved under."""

    def save(self, folder: Path) -> None:
        """Whole or not at all; an existing folder is kept.

        Raises:
            UsageError: the folder is there already.
        """
        save_adapter(self.model, ADAPTER, folder)


def start(model: Any, settings: TrainSection, init: Path | None, seed: int) -> Weights:
    """Puts what learns into the model: the champion's adapter to go on from, or a new one.

    Raises:
        UsageError: the champion's has another shape than the project asks for.
    """
    from trainer.attention import attend
    from trainer.lora import fuse_adapter

    rank, alpha = settings.rank, settings.alpha
    add_adapter(model, ADAPTER, init, rank=rank, alpha=alpha, seed=seed, trainable=True)
    config = model.peft_config[ADAPTER]
    if (config.r, config.lora_alpha) != (rank, alpha):
        raise UsageError(
            f"adapter {init} has rank {config.r} and alpha {config.lora_alpha}, the project says "
            f"{rank} and {alpha}: a run goes on with the shape it started from"
        )
    use_attention(model, "flywheel_tree", attend)
    fuse_adapter(model, ADAPTER)
    return Weights(model, "adapter")

"""What learns in a model, from a run's start to what it leaves behind.

An adapter (LoRA) on frozen base weights, or all weights. Whoever trains, probes or saves asks here
and need not know which, nor over how many processes they lie. The weights that a run starts from
are kept aside: a copy of the adapter, or the base model's own mapped file.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from flywheel.errors import UsageError
from flywheel.train_section import TrainSection
from trainer.attention import attend
from trainer.full import free, save_model
from trainer.layers import fuse_layers
from trainer.lora import fuse_adapter
from trainer.models import Base, adapter_tensors, add_adapter, save_adapter, use_attention
from trainer.parallel import ALONE, Ranks, inside, like, shard, whole

ADAPTER = "candidate"
"""Its name while it is trained."""
T = TypeVar("T")


class Weights:
    def __init__(
        self,
        model: Any,
        *,
        ranks: Ranks = ALONE,
        ema: float | None = None,
        cast: torch.dtype | None = None,
        full: Path | None = None,
        started: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """
        Args:
            model: ready to train; its parameters that learn require gradients.
            ema: decay of their moving average; None = none.
            cast: number format that is computed in where parameters have another; None = theirs.
            full: the base model's folder, where all weights learn; None = the adapter `ADAPTER`.
            started: what they start from, whole; None = what they are now.
        """
        self.model, self.ranks = model, ranks
        self.learning: dict[str, torch.nn.Parameter] = {
            name: each for name, each in model.named_parameters() if each.requires_grad
        }
        """In the model's order; over several ranks, sharded."""
        self.average: dict[str, torch.Tensor] | None = None
        """Parallel to `learning`."""
        self._ema, self._cast, self._full = ema, cast, full
        self._started = started or {name: whole(p).clone() for name, p in self.learning.items()}
        if ema is not None:
            self.average = {name: p.detach().clone() for name, p in self.learning.items()}

    @property
    def folder(self) -> str:
        """The name of the folder that they are saved in: `adapter`, or `model`."""
        return "model" if self._full else "adapter"

    @property
    def vocabulary(self) -> int:
        """Tokens that the model has an embedding of."""
        return int(self.model.get_input_embeddings().num_embeddings)

    def apply(self, function: Callable[..., T], *given: Any, **named: Any) -> T:
        """`function(model, …)`: a forward pass, in the number format that is computed in."""
        cast = torch.autocast(self.ranks.device.type, self._cast, enabled=self._cast is not None)
        with cast:
            return inside(self.model, function, *given, **named)

    def moved(self) -> None:
        """After an optimizer step: the average follows, a ← d a + (1 - d) w."""
        if self.average is not None and self._ema is not None:
            for name, parameter in self.learning.items():
                self.average[name].lerp_(parameter.detach(), 1 - self._ema)

    @contextlib.contextmanager
    def as_started(self) -> Iterator[None]:
        """The weights that the run started from, in here."""
        with self._exchanged({n: like(p, self._started[n]) for n, p in self.learning.items()}):
            yield

    @contextlib.contextmanager
    def as_kept(self) -> Iterator[None]:
        """The weights that the run leaves behind, in here: the average, where there is one."""
        if self.average is None:
            yield
            return
        with self._exchanged(self.average):
            yield

    @contextlib.contextmanager
    def _exchanged(self, others: Mapping[str, torch.Tensor]) -> Iterator[None]:
        own = {name: each.detach().clone() for name, each in self.learning.items()}
        self.put(others)
        try:
            yield
        finally:
            self.put(own)

    @torch.no_grad()
    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Placed as the parameters are."""
        for name, parameter in self.learning.items():
            parameter.copy_(tensors[name])

    def save(self, folder: Path) -> None:
        """By the first rank, whole or not at all; all ranks must come.

        Raises:
            UsageError: the folder is there already.
        """
        if self._full is not None:
            tensors = {name: whole(each) for name, each in self.model.state_dict().items()}
            if self.ranks.first:
                save_model(self.model, tensors, self._full, folder)
            return
        own = {name: whole(each) for name, each in adapter_tensors(self.model, ADAPTER).items()}
        if self.ranks.first:
            save_adapter(self.model, ADAPTER, folder, own)


def start(
    base: Base, settings: TrainSection, init: Path | None, seed: int, ranks: Ranks
) -> Weights:
    """What `settings` let learn, on this rank's device: the champion's adapter to go on from, a new
    one, or all weights, the champion's adapter added into them.

    Raises:
        UsageError: the champion's adapter has another shape than the project asks for.
    """
    model: Any = base.model
    full = settings.method == "full"
    if full:
        started = free(model, init)
    else:
        _adapt(model, settings, init, seed)
        started = None
    use_attention(model, "flywheel_tree", attend)
    fuse_layers(model)
    if not full:
        fuse_adapter(model, ADAPTER)
    cast = _place(model, settings, ranks)
    return Weights(
        model,
        ranks=ranks,
        ema=settings.ema,
        cast=cast,
        full=base.folder if full else None,
        started=started,
    )


def _adapt(model: Any, settings: TrainSection, init: Path | None, seed: int) -> None:
    rank, alpha = settings.rank, settings.alpha
    add_adapter(model, ADAPTER, init, rank=rank, alpha=alpha, seed=seed, trainable=True)
    config = model.peft_config[ADAPTER]
    if (config.r, config.lora_alpha) != (rank, alpha):
        raise UsageError(
            f"adapter {init} has rank {config.r} and alpha {config.lora_alpha}, the project says "
            f"{rank} and {alpha}: a run goes on with the shape it started from"
        )


def compute_of(settings: TrainSection, device: torch.device) -> torch.dtype:
    """The number format of the forward pass."""
    usual = "bfloat16" if device.type == "cuda" else "float32"
    compute: torch.dtype = getattr(torch, settings.compute or usual)
    return compute


def _place(model: Any, settings: TrainSection, ranks: Ranks) -> torch.dtype | None:
    """Moves the model to its device, or shards it; returns what passes must be cast to.

    What learns stays in float32. Alone, frozen weights are stored as they are computed with; over
    several ranks they stay float32 too, which FSDP2 asks for, and are cast as they come together.
    """
    compute = compute_of(settings, ranks.device)
    if ranks.world > 1:
        shard(model, ranks, compute)  # moves layer by layer what this rank keeps
        return None
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(ranks.device, compute)
    model.to(ranks.device)
    return compute if settings.method == "full" and compute != torch.float32 else None

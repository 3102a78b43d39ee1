"""Several processes that train one run together: torchrun starts them, FSDP2 shards the model.

Every rank reads all samples and computes its own micro-batches; parameters, gradients and the
optimizer's state are sharded; only rank 0 writes files. What is written is whole, so a run may go
on with another number of processes. Alone (one process) nothing here communicates.
Invariant: all ranks call what communicates in the same order.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed.tensor import DTensor, distribute_tensor

from flywheel.errors import FlywheelError
from trainer.forward import text_of

T = TypeVar("T")
_PATIENCE = timedelta(hours=2)
"""Longest wait of one rank for another: the first writes checkpoints while the others wait."""


@dataclass(frozen=True)
class Ranks:
    device: torch.device
    """This process's."""
    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes the run's files."""
        return self.rank == 0

    def agreed(self, decide: Callable[[], T]) -> T:
        """What the first rank decides; the others do not run `decide`. Its error is everyone's."""
        if self.world == 1:
            return decide()
        told: list[Any] = [None, None]
        failed: Exception | None = None
        if self.first:
            try:
                told[0] = decide()
            except Exception as error:
                told[1], failed = str(error), error
        distributed.broadcast_object_list(told, device=self.device)
        if told[1] is not None:
            raise failed or FlywheelError(told[1])
        return told[0]  # type: ignore[no-any-return]

    def gathered(self, own: T) -> list[T]:
        """Everyone's, in the order of ranks."""
        if self.world == 1:
            return [own]
        found: list[Any] = [None] * self.world
        distributed.all_gather_object(found, own)
        return found

    def summed(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Name by name, in the order of ranks: the same bits everywhere. A rank may lack names."""
        total: dict[str, float] = {}
        for one in self.gathered(dict(numbers)):
            for name, value in one.items():
                total[name] = total.get(name, 0.0) + value
        return total


ALONE = Ranks(torch.device("cpu"))


@contextlib.contextmanager
def joined(device: str | None = None) -> Iterator[Ranks]:
    """The ranks that torchrun started, or this process alone; `device` None = a GPU where there is
    one, else the CPU."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if not distributed.is_torchelastic_launched():
        yield Ranks(torch.device(kind))
        return
    own = torch.device(kind)
    if own.type == "cuda":
        own = torch.device("cuda", distributed.get_node_local_rank())
        torch.cuda.set_device(own)
    distributed.init_process_group("nccl" if own.type == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield Ranks(own, distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()


def shard(model: Any, ranks: Ranks, compute: torch.dtype) -> None:
    """Shards every parameter over the ranks, layer by layer. From then on the weights are whole
    only inside of `inside`.

    Each layer's weights come together as it is computed, in `compute`, and gradients are added up
    in float32 (Zhao et al. 2023, "PyTorch FSDP").
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    policy = MixedPrecisionPolicy(
        param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in text_of(model).layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.forward = lambda function, *given, **named: function(model, *given, **named)


def inside(model: Any, function: Callable[..., T], *given: Any, **named: Any) -> T:
    """`function(model, …)`, where it may read the weights."""
    from torch.distributed.fsdp import FSDPModule

    if isinstance(model, FSDPModule):
        return model(function, *given, **named)  # type: ignore[operator, no-any-return]
    return function(model, *given, **named)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, without gradient; communicates."""
    full = tensor.detach()
    return (full.full_tensor() if isinstance(full, DTensor) else full).cpu()


def like(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A whole `tensor`, which all ranks have, placed and cut as `parameter` is."""
    there = tensor.to(device=parameter.device, dtype=parameter.dtype)
    if not isinstance(parameter, DTensor):
        return there
    return distribute_tensor(
        there, parameter.device_mesh, parameter.placements, src_data_rank=None
    )  # fmt: skip

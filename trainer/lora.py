"""LoRA layers in one step each, for training: the same numbers as peft's, with fewer passes.

peft's layer makes four tensors as wide as its output, and as many again for the backward pass. Here
the low-rank part is added in place by the matrix product itself. Only adapters without dropout or
bias are fused; what an adapter is and how it is saved stays peft's. A layer computes in its frozen
weight's number format, whatever the adapter is kept in.
"""

from functools import partial
from typing import Any

import torch


def fuse_adapter(model: Any, name: str) -> int:
    """Replaces the forward pass of every plain LoRA layer by the fused one, for adapter `name`
    alone; returns how many there were. For a model that only trains and probes that adapter."""
    from peft.tuners.lora import Linear

    layers: list[Any] = [each for each in model.modules() if isinstance(each, Linear)]
    plain = [layer for layer in layers if _plain(layer, name)]
    for layer in plain:
        layer.forward = partial(_forward, layer, name)
    return len(plain)


def _plain(module: Any, name: str) -> bool:
    return (
        name in module.lora_A
        and isinstance(module.lora_dropout[name], torch.nn.Identity)
        and module.base_layer.bias is None
        and module.lora_B[name].bias is None
        and not module.use_dora.get(name)
        and not module.merged
    )


def _forward(module: Any, name: str, hidden: torch.Tensor) -> torch.Tensor:
    if module.disable_adapters or module.active_adapters != [name]:
        return type(module).forward(module, hidden)  # type: ignore[no-any-return]
    apply: Any = _LoraLinear.apply
    weight = module.base_layer.weight
    out: torch.Tensor = apply(
        hidden.reshape(-1, hidden.shape[-1]).to(weight.dtype),
        weight,
        module.lora_A[name].weight.to(weight.dtype),
        module.lora_B[name].weight.to(weight.dtype),
        module.scaling[name],
    )
    return out.view(*hidden.shape[:-1], -1)


class _LoraLinear(torch.autograd.Function):
    """y = x Wᵀ + s (x Aᵀ) Bᵀ with W frozen (Hu et al. 2021, "LoRA", eq. 3).

    x [n, in], W [out, in], A [rank, in], B [out, rank].
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        low = x @ a.T
        ctx.save_for_backward(x, weight, a, b, low)
        ctx.scale = scale
        return (x @ weight.T).addmm_(low, b.T, alpha=scale)

    @staticmethod
    def backward(ctx: Any, *above: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, a, b, low = ctx.saved_tensors
        (slope,) = above
        down = (slope @ b).mul_(ctx.scale)
        by_x = None
        if ctx.needs_input_grad[0]:
            by_x = (slope @ weight).addmm_(down, a)
        # As its transpose: with few rows the product is twice as fast as with few columns.
        by_b = (low.T @ slope).mul_(ctx.scale).T
        return by_x, None, down.T @ x, by_b, None

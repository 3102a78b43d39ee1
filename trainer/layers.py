"""A model's norms and rotary embeddings in fewer passes over memory, for training on a CPU.

There, what is not a matrix product is bound by memory: autograd's own RMSNorm and rotary embedding
make a tensor at every operation, and again in the backward pass. A layer is replaced only where the
fused one gives its numbers on random ones, so models with other formulas keep theirs.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Rotate = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def fuse_layers(model: Any) -> int:
    """Returns how many norms there were. Layers of other types than float32 are as before."""
    norms: list[Any] = [each for each in model.modules() if type(each).__name__.endswith("RMSNorm")]
    fused = [norm for norm in norms if _is_plain(norm)]
    for norm in fused:
        norm.forward = partial(_forward, norm)
    for name in {type(each).__module__ for each in norms}:
        home = sys.modules[name]
        rotate = getattr(home, "apply_rotary_pos_emb", None)
        if rotate is not None and not hasattr(rotate, "plain") and _is_half_rotation(rotate):
            home.apply_rotary_pos_emb = _fused(rotate)  # type: ignore[attr-defined]
    return len(fused)


def _is_plain(norm: Any) -> bool:
    weight: Any = getattr(norm, "weight", None)
    epsilon: Any = getattr(norm, "variance_epsilon", None)
    if weight is None or epsilon is None or weight.dtype != torch.float32 or weight.is_meta:
        return False
    given = torch.linspace(-3, 2, weight.numel(), device=weight.device)[None]
    with torch.no_grad():
        own: torch.Tensor = type(norm).forward(norm, given)
        return torch.allclose(own, normed(given, weight, epsilon), atol=1e-5)


def _forward(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    if hidden.dtype != torch.float32:
        return type(norm).forward(norm, hidden)  # type: ignore[no-any-return]
    return normed(hidden, norm.weight, norm.variance_epsilon)


def normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Along the last axis."""
    apply: Any = _RMSNorm.apply
    y: torch.Tensor = apply(x, weight, epsilon)
    return y


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [.., n, dim]; cos and sin broadcast to it, without gradient."""
    apply: Any = _Rotation.apply
    y: torch.Tensor = apply(x, cos, sin)
    return y


class _RMSNorm(torch.autograd.Function):
    """y = w x / rms(x), rms(x)² = mean(x²) + ε (Zhang and Sennrich 2019, eq. 4).

    With r = 1 / rms(x) and g = w dy: dx = r g - x r³ mean(g x). x [.., width], w [width].
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        r = square.div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        y: torch.Tensor = (x * r).mul_(weight)
        return y

    @staticmethod
    def backward(ctx: Any, *above: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, r = ctx.saved_tensors
        (slope,) = above
        by_x = by_weight = None
        if ctx.needs_input_grad[1]:
            by_weight = (x * r).mul_(slope).flatten(0, -2).sum(0)
        if ctx.needs_input_grad[0]:
            by_x = slope * weight
            shared = (by_x * x).sum(-1, keepdim=True).div_(x.shape[-1]).mul_(r.pow(3))
            by_x = by_x.mul_(r).addcmul_(x, shared, value=-1)
        return by_x, by_weight, None


def _fused(plain: Rotate) -> Rotate:
    def rotate(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
        unsqueeze_dim: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        if q.dtype != torch.float32 or cos.requires_grad:
            return plain(q, k, cos, sin, unsqueeze_dim)
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return rotated(q, cos, sin), rotated(k, cos, sin)

    rotate.plain = plain  # type: ignore[attr-defined]
    return rotate


def _is_half_rotation(rotate: Rotate) -> bool:
    """Whether it is the one that _Rotation computes, on the whole of every head."""
    q, k = torch.linspace(-1, 1, 48).view(1, 2, 3, 8), torch.linspace(1, 2, 24).view(1, 1, 3, 8)
    cos, sin = torch.linspace(0, 1, 24).view(1, 3, 8), torch.linspace(1, -1, 24).view(1, 3, 8)
    try:
        pairs = zip(rotate(q, k, cos, sin), _fused(rotate)(q, k, cos, sin), strict=True)
        return all(torch.allclose(one, other, atol=1e-6) for one, other in pairs)
    except (TypeError, RuntimeError):
        return False


class _Rotation(torch.autograd.Function):
    """y = x cos + (-x₂, x₁) sin, with x₁ and x₂ the halves of a head (Su et al. 2021, "RoFormer",
    eq. 34, with the pairs half a head apart)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        first, second = x.chunk(2, dim=-1)
        by_first, by_second = sin.chunk(2, dim=-1)
        y = x * cos
        out = y.chunk(2, dim=-1)
        out[0].addcmul_(second, by_first, value=-1)
        out[1].addcmul_(first, by_second)
        return y

    @staticmethod
    def backward(ctx: Any, *above: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        (slope,) = above
        first, second = slope.chunk(2, dim=-1)
        by_first, by_second = sin.chunk(2, dim=-1)
        by_x = slope * cos
        out = by_x.chunk(2, dim=-1)
        out[0].addcmul_(second, by_second)
        out[1].addcmul_(first, by_first, value=-1)
        return by_x, None, None

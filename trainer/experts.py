"""Routing replay: a mixture model takes the experts again that the engine took as it sampled.

Enters a model and a micro-batch; its routers then send each token where its sample says, weighing
the experts by their own probabilities, which carry the gradient; where nothing is recorded they
decide themselves (Zheng et al. 2025, "Group Sequence Policy Optimization", section 5.3; Ma et al.
2025, "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers").
"""

from functools import partial
from typing import Any

import torch

from flywheel.errors import UsageError
from flywheel.records import UNKNOWN_EXPERT
from trainer.packing import Packed


def replay(model: Any, packed: Packed) -> None:
    """From now on, until the next call: passes back through recomputed layers need it too.

    Raises:
        UsageError: the model has no such routers, or the recorded ones are another model's.
    """
    routers: list[Any] = [each for each in model.modules() if _is_router(each)]
    recorded = packed.experts
    if recorded is None:
        for router in routers:
            router.recorded = None
        return
    if len(routers) != recorded.layers or any(each.top_k != recorded.top_k for each in routers):
        raise UsageError(
            f"experts of {recorded.layers} layers, {recorded.top_k} each, are recorded, but the "
            f"model has {len(routers)} layers of experts: another model sampled"
        )
    shape = len(packed.token_ids), recorded.layers, recorded.top_k
    known = torch.frombuffer(bytearray(recorded.data), dtype=torch.uint16).to(torch.long)
    for layer, router in enumerate(routers):
        if "normalised" not in vars(router):
            router.normalised = _is_normalised(router)
            router.forward = partial(_forward, router)
        router.recorded = known.view(shape)[:, layer].to(router.weight.device)


def _is_router(module: Any) -> bool:
    return type(module).__name__.endswith("TopKRouter") and hasattr(module, "top_k")


@torch.no_grad()
def _is_normalised(router: Any) -> bool:
    """Whether the weights of a token's experts are made to sum to 1."""
    given = torch.linspace(-1, 1, 4 * router.weight.shape[1], device=router.weight.device)
    given = given.to(router.weight.dtype).view(4, -1)
    logits, scores, chosen = type(router).forward(router, given)
    taken = logits.float().softmax(-1).gather(1, chosen)
    for normalised in (True, False):
        whole = taken.sum(-1, keepdim=True) if normalised else 1.0
        if torch.allclose(scores.float(), taken / whole, atol=1e-2):
            return normalised
    raise UsageError(f"{type(router).__name__} weighs experts by another formula than softmax")


def _forward(router: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
    logits, scores, own = type(router).forward(router, hidden)
    if router.recorded is None:
        return logits, scores, own
    chosen = torch.where(router.recorded == UNKNOWN_EXPERT, own, router.recorded)
    taken = logits.float().softmax(-1).gather(1, chosen)
    if router.normalised:
        taken = taken / taken.sum(-1, keepdim=True)
    return logits, taken.to(scores.dtype), chosen

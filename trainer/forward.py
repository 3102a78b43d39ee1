"""One micro-batch through the model: the log probabilities of its trained tokens.

Logits exist only at trained positions, and only a chunk of them at a time: [tokens, vocabulary] is
never held. Where memory would run short, as many layers as needed are recomputed in the backward
pass; which ones depends on the micro-batch's size alone, so a run repeats bit for bit.
"""

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from trainer.attention import tree_of
from trainer.packing import Packed

CHUNK = 128
"""Trained positions whose logits exist at the same time."""


def trained_logprobs(model: Any, packed: Packed) -> torch.Tensor:
    """[m], parallel to `packed.targets`; temperature 1, the full softmax.

    `model` is a causal language model of transformers, with or without adapters in its layers:
    `.model` gives the last hidden states, `.lm_head` the logits; its attention is `attend`.
    """
    device = next(model.parameters()).device
    hidden = model.model(
        input_ids=torch.tensor([packed.token_ids], device=device),
        position_ids=torch.tensor([packed.positions], device=device),
        use_cache=False,
        tree=tree_of(packed, model.lm_head.weight),
    ).last_hidden_state[0]
    sources = torch.tensor(packed.sources, device=device)
    targets = torch.tensor(packed.targets, device=device)
    return head_logprobs(model.lm_head, hidden[sources], targets)


def head_logprobs(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """[m] from hidden [m, width]. A frozen head costs no second pass and keeps no logits."""
    if isinstance(head, torch.nn.Linear) and head.bias is None and not head.weight.requires_grad:
        logprobs: torch.Tensor = _FrozenHead.apply(hidden, head.weight, targets)
        return logprobs
    chunks = zip(torch.split(hidden, CHUNK), torch.split(targets, CHUNK), strict=True)
    return torch.cat(
        [checkpoint(partial(_picked, head), *chunk, use_reentrant=False) for chunk in chunks]
    )


def _picked(head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = head(hidden)
    return logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(1)


class _FrozenHead(torch.autograd.Function):
    """log softmax(W h)[y] for a W that does not learn.

    Its gradient by h is W_y - softmax(W h) W: known as soon as the logits are, and only scaled by
    what comes from above. So the forward pass computes it, and the logits are forgotten.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        picked, slopes = [], []
        for part, ids in zip(torch.split(hidden, CHUNK), torch.split(targets, CHUNK), strict=True):
            logits = part @ weight.T
            total = logits.logsumexp(1, keepdim=True)
            picked.append(logits.gather(1, ids[:, None])[:, 0] - total[:, 0])
            if ctx.needs_input_grad[0]:
                softmax = logits.sub_(total).exp_()
                slopes.append(weight[ids] - softmax @ weight)
        if slopes:
            ctx.save_for_backward(torch.cat(slopes))
        return torch.cat(picked)

    @staticmethod
    def backward(ctx: Any, *above: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return above[0][:, None] * slopes, None, None


def recompute_layers(model: Any, tokens: int, budget: int) -> int:
    """Marks as many layers for recomputation as keep the activations within `budget` bytes.

    Returns how many were marked. The last ones are: they are needed first in the backward pass, so
    what they recompute is gone again when the next one starts.
    """
    config: Any = model.config
    layers = list(model.model.layers)
    size = 4 * tokens * (10 * config.hidden_size + 4 * config.intermediate_size)
    kept = len(layers)
    if size * kept > budget:
        inputs = 4 * tokens * config.hidden_size * len(layers)
        kept = max(0, (budget - size - inputs) // size)
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = index >= kept
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    return len(layers) - kept

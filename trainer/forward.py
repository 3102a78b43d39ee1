"""One micro-batch through the model: log probabilities and entropies at its trained tokens.

Logits exist only at trained positions, and only a chunk of them at a time: [tokens, vocabulary] is
never held. Where memory would run short, as many layers as needed are recomputed in the backward
pass; which ones depends on the micro-batch's size alone, so a run repeats bit for bit.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from trainer.attention import tree_of
from trainer.experts import replay
from trainer.packing import Packed
from trainer.pictures import seen

CHUNK = 128
"""Trained positions whose logits exist at the same time."""


class Scores(NamedTuple):
    """Both parallel to `packed.targets`, over the full softmax at each token's temperature."""

    logprobs: torch.Tensor
    """[m] of the trained tokens; carries the gradient."""
    entropies: torch.Tensor | None
    """[m] of the distributions that they were picked from, in nats; without gradient. None = not
    asked for."""


def trained_logprobs(model: Any, packed: Packed) -> torch.Tensor:
    """[m], parallel to `packed.targets`."""
    return score(model, packed).logprobs


def score(model: Any, packed: Packed, *, entropies: bool = False) -> Scores:
    """
    `model` is a causal language model of transformers, with or without adapters in its layers:
    `.model` gives the last hidden states, `.lm_head` the logits; its attention is `attend`.
    """
    device = next(model.parameters()).device
    replay(model, packed)
    hidden = model.model(
        input_ids=torch.tensor([packed.token_ids], device=device),
        position_ids=torch.tensor([packed.positions], device=device),
        use_cache=False,
        tree=tree_of(packed, device),
        **seen(model, packed),
    ).last_hidden_state[0]
    sources = torch.tensor(packed.sources, dtype=torch.long, device=device)
    targets = torch.tensor(packed.targets, dtype=torch.long, device=device)
    hot = None
    if any(one != 1.0 for one in packed.temperatures):
        hot = torch.tensor(packed.temperatures, dtype=hidden.dtype, device=device)
    return head_scores(model.lm_head, hidden[sources], targets, hot, entropies=entropies)


def head_scores(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperatures: torch.Tensor | None = None,
    *,
    entropies: bool = False,
) -> Scores:
    """From hidden [m, width], targets [m] and temperatures [m] (None = 1 everywhere).

    A frozen head costs no second pass and keeps no logits.
    """
    if isinstance(head, torch.nn.Linear) and head.bias is None and not head.weight.requires_grad:
        found = _FrozenHead.apply(hidden, head.weight, targets, temperatures, entropies)
    else:
        parts = [
            checkpoint(partial(_scores, head, entropies), *chunk, use_reentrant=False)
            for chunk in _chunks(hidden, targets, temperatures)
        ]
        found = tuple(map(torch.cat, zip(*parts, strict=True)))
    return Scores(found[0], found[1] if entropies else None)


def _chunks(
    hidden: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    for at in range(0, max(1, len(targets)), CHUNK):
        cut = slice(at, at + CHUNK)
        yield hidden[cut], targets[cut], None if temperatures is None else temperatures[cut]


def _scores(
    head: Callable[[torch.Tensor], torch.Tensor],
    entropies: bool,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperatures: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    logits = _logits(head(hidden), temperatures)
    total = logits.logsumexp(1, keepdim=True)
    picked = (logits.gather(1, targets[:, None]) - total)[:, 0]
    if not entropies:
        return (picked,)
    with torch.no_grad():
        return picked, torch.special.entr((logits - total).exp_()).sum(1)


def _logits(raw: torch.Tensor, temperatures: torch.Tensor | None) -> torch.Tensor:
    """At their temperatures, and wide enough for a sum over the vocabulary."""
    wide = raw.float() if raw.dtype in (torch.bfloat16, torch.float16) else raw
    return wide if temperatures is None else wide / temperatures[:, None].to(wide.dtype)


class _FrozenHead(torch.autograd.Function):
    """log softmax(W h / T)[y] for a W that does not learn, and the distribution's entropy.

    Its gradient by h is (W_y - softmax(W h / T) W) / T: known as soon as the logits are, and only
    scaled by what comes from above. So the forward pass computes it, and forgets the logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperatures: torch.Tensor | None,
        entropies: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        picked, spread, slopes = [], [], []
        for part, ids, heat in _chunks(hidden, targets, temperatures):
            logits = _logits(part @ weight.T, heat)
            total = logits.logsumexp(1, keepdim=True)
            picked.append((logits.gather(1, ids[:, None]) - total)[:, 0])
            if not (entropies or ctx.needs_input_grad[0]):
                continue
            softmax = logits.sub_(total).exp_()
            if entropies:
                spread.append(torch.special.entr(softmax).sum(1))
            if ctx.needs_input_grad[0]:
                slope = weight[ids] - softmax.to(weight.dtype) @ weight
                slopes.append(slope if heat is None else slope / heat[:, None])
        if slopes:
            ctx.save_for_backward(torch.cat(slopes))
        logprobs = torch.cat(picked)
        apart = torch.cat(spread) if spread else torch.empty_like(logprobs)
        ctx.mark_non_differentiable(apart)
        return logprobs, apart

    @staticmethod
    def backward(ctx: Any, *above: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return (above[0][:, None] * slopes).to(slopes.dtype), None, None, None, None


def text_of(model: Any) -> Any:
    """The decoder whose layers read text: of a model that sees it is one part among others."""
    return getattr(model.model, "language_model", model.model)


def recompute_layers(model: Any, tokens: int, budget: int) -> int:
    """Marks as many layers for recomputation as keep the activations within `budget` bytes.

    Returns how many were marked. The last ones are: they are needed first in the backward pass, so
    what they recompute is gone again when the next one starts.
    """
    text = text_of(model)
    config, layers = text.config, list(text.layers)
    size = 4 * tokens * (10 * config.hidden_size + 4 * config.intermediate_size)
    kept = len(layers)
    if size * kept > budget:
        inputs = 4 * tokens * config.hidden_size * len(layers)
        kept = max(0, (budget - size - inputs) // size)
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = index >= kept
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    return len(layers) - kept

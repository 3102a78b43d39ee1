"""From logits to tokens: temperature, top-k, top-p, one seeded draw a row, and its logprob.

Logprobs are processed: those of the distribution that was sampled from (temperature, truncation and
a form applied); greedy rows report the model's own, of what the form allows. A row's draws depend
on its seed alone, never on which other rows are in the batch.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

GREEDY = 1e-5
"""Temperatures below this mean the likeliest token, as in vLLM."""
COLDEST = 1e-2


class Held(Protocol):
    def forbid(self, logits: torch.Tensor) -> None: ...
    def take(self, token: int) -> None: ...


@dataclass(frozen=True)
class Choosing:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = all."""
    top_logprobs: int = 0
    """How many of the likeliest tokens are reported beside the sampled one."""
    form: Held | None = field(default=None, compare=False)
    """What one answer is held to: it knows what was drawn so far, so each answer has its own."""


@dataclass(frozen=True)
class Drawn:
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = field(default=())
    """(id, logprob) of the likeliest tokens, best first."""


def generator(seed: int | None, choice: int) -> torch.Generator:
    """Random numbers for choice `choice` of a request; without a seed nobody can repeat them."""
    made = torch.Generator()
    mixed = random.Random(f"{seed}/{choice}").getrandbits(63) if seed is not None else None
    made.manual_seed(random.SystemRandom().getrandbits(63) if mixed is None else mixed)
    return made


def draw(
    logits: torch.Tensor, how: Sequence[Choosing], generators: Sequence[torch.Generator]
) -> list[Drawn]:
    """One token a row of `logits`, [rows, vocabulary], which is overwritten."""
    for row, choosing in enumerate(how):
        if choosing.form is not None:
            choosing.form.forbid(logits[row])
    cold = [choosing.temperature < GREEDY for choosing in how]
    heat = [1.0 if c else max(h.temperature, COLDEST) for c, h in zip(cold, how, strict=True)]
    if any(value != 1.0 for value in heat):
        logits /= torch.tensor(heat)[:, None]
    for row, choosing in enumerate(how):
        if not cold[row] and (choosing.top_p < 1.0 or choosing.top_k > 0):
            _truncate(logits[row], choosing)
    logprobs = torch.log_softmax(logits, dim=-1)
    ids = logprobs.argmax(-1)
    warm = [row for row, c in enumerate(cold) if not c]
    if warm:
        ids[warm] = _sample(logprobs[warm], [generators[row] for row in warm], ids[warm])
    for token, choosing in zip(ids.tolist(), how, strict=True):
        if choosing.form is not None:
            choosing.form.take(token)
    chosen = logprobs.gather(1, ids[:, None])[:, 0].tolist()
    return [
        Drawn(token, logprob, _top(logprobs[row], how[row].top_logprobs))
        for row, (token, logprob) in enumerate(zip(ids.tolist(), chosen, strict=True))
    ]


def _sample(
    logprobs: torch.Tensor, generators: Sequence[torch.Generator], best: torch.Tensor
) -> torch.Tensor:
    """Inverts the cumulative distribution at one uniform number a row."""
    heights = logprobs.exp().cumsum(-1)
    uniform = torch.cat([torch.rand(1, generator=each) for each in generators])
    at = torch.searchsorted(heights, (uniform * heights[:, -1])[:, None], right=True)[:, 0]
    return torch.where(at < logprobs.shape[-1], at, best)


def _truncate(logits: torch.Tensor, choosing: Choosing) -> None:
    """Sets all but the likeliest tokens of one row to -inf, in place; the best one always stays."""
    ordered, order = logits.sort(descending=True)
    beyond = torch.zeros(len(ordered), dtype=torch.bool)
    if choosing.top_k > 0:
        beyond[choosing.top_k :] = True
    if choosing.top_p < 1.0:
        kept = ordered.masked_fill(beyond, -torch.inf).softmax(-1)
        beyond |= kept.cumsum(-1) - kept >= choosing.top_p
    beyond[0] = False
    logits[order[beyond]] = -torch.inf


def _top(logprobs: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    return tuple(zip(ids.tolist(), values.tolist(), strict=True))

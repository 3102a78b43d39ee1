"""Scoring: the model's own logprobs of given tokens, at temperature 1 over the whole softmax.

Nothing is sampled. What the prompts share is computed once, and logits only a few positions at a
time, so that a long prompt needs no matrix of its length by the vocabulary.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch

from serving.engines.embedded_attention import prefilling
from serving.engines.embedded_batch import CHUNK
from serving.engines.embedded_cache import WORTH, Segment, Slots, common_length
from serving.engines.embedded_model import Model

_POSITIONS = 64
"""Positions whose logits are held at one time."""


@dataclass(frozen=True)
class Scored:
    """One token of a prompt. The first of a prompt has none: nothing predicts it."""

    logprob: float
    rank: int
    """1 = the likeliest."""
    top: tuple[tuple[int, float], ...]


Prompt = list[Scored | None]


def score(
    model: Model, adapter: str, prompts: Sequence[tuple[int, ...]], top: int
) -> Generator[None, None, list[Prompt]]:
    """Parallel to `prompts`; each parallel to its ids."""
    shared = common_length(prompts) if len(prompts) > 1 else 0
    if shared < WORTH:
        found = []
        for prompt in prompts:
            _, scores, _ = yield from _pass(model, adapter, None, prompt, None, top)
            found.append([None, *scores])
        return found
    ids = prompts[0][:shared]
    slots, before, last = yield from _pass(model, adapter, None, ids, None, top)
    segment, found = slots.segment(ids), []
    for prompt in prompts:
        _, scores, _ = yield from _pass(model, adapter, segment, prompt[shared:], last, top)
        found.append([None, *before, *scores])
    return found


def _pass(
    model: Model,
    adapter: str,
    segment: Segment | None,
    ids: tuple[int, ...],
    before: torch.Tensor | None,
    top: int,
) -> Generator[None, None, tuple[Slots, list[Scored | None], torch.Tensor]]:
    """Scores of `ids` (but the first, where no hidden state `before` it is given), and the hidden
    state after the last, [1, width]."""
    slots, offset = Slots(model.shape), segment.length if segment else 0
    slots.add([len(ids)])
    scores: list[Scored | None] = []
    last = before
    for start in range(0, len(ids), CHUNK):
        chunk = torch.tensor([ids[start : start + CHUNK]])
        width = chunk.shape[1]
        positions = torch.arange(offset + start, offset + start + width)[None]
        part = prefilling(segment, slots, start, width)
        hidden = model.hidden(adapter, chunk, positions, [part])[0]
        sources = hidden[:-1] if last is None else torch.cat([last, hidden[:-1]])
        scores += _scores(model, sources, chunk[0, width - len(sources) :], top)
        last = hidden[-1:]
        yield
    assert last is not None
    return slots, scores, last


def _scores(model: Model, hidden: torch.Tensor, ids: torch.Tensor, top: int) -> list[Scored | None]:
    found: list[Scored | None] = []
    for start in range(0, len(ids), _POSITIONS):
        logprobs = model.logits(hidden[start : start + _POSITIONS]).log_softmax(-1)
        wanted = ids[start : start + _POSITIONS]
        own = logprobs.gather(1, wanted[:, None])
        ranks = (logprobs > own).sum(-1) + 1
        best = logprobs.topk(min(top, logprobs.shape[-1])) if top else None
        for row, (logprob, rank) in enumerate(zip(own[:, 0].tolist(), ranks.tolist(), strict=True)):
            pairs = (
                tuple(zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True))
                if best
                else ()
            )
            found.append(Scored(logprob, rank, pairs))
    return found

"""Attention over shared prefixes and growing rows: what the model's layers call for their own.

A batch is made of parts; the rows of a part share one segment, which is attended once for all of
them as one matrix product, and have keys and values of their own in slots. Enter: rotated queries,
keys, values of the new tokens, [batch, heads, new, dim]. Leaves: [batch, new, heads, dim]. New keys
and values are written into the slots on the way. Grouped-query heads are never copied out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from serving.engines.embedded_cache import Segment, Slots

NAME = "flywheel_shared_prefix"


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of the batch that share a segment, in the order of their slots, starting with slot 0."""

    segment: Segment | None
    slots: Slots
    rows: int
    start: int
    """Where the new tokens go in every slot when many are prefilled; unused with `positions`."""
    positions: torch.Tensor | None
    """[rows, new] where each row's new tokens go; None while prefilling."""
    mask: torch.Tensor
    """[rows or 1, 1, 1, new, own tokens] 0 where a new token sees an own token, else -inf."""


def prefilling(segment: Segment | None, slots: Slots, start: int, width: int) -> Part:
    """`width` new tokens for every row, from own position `start`."""
    seen = torch.arange(start + width) <= torch.arange(start, start + width)[:, None]
    return Part(segment, slots, len(slots.lengths), start, None, _mask(seen[None]))


def decoding(segment: Segment | None, slots: Slots, width: int | None = None, new: int = 1) -> Part:
    """`new` tokens for every row, at the end of what it has; `width` = own tokens that are looked
    at, seen or not (None = as many as the longest row has)."""
    positions = torch.tensor(slots.lengths)[:, None] + torch.arange(new)
    seen = torch.arange(width or max(slots.lengths) + new) <= positions[..., None]
    return Part(segment, slots, len(slots.lengths), 0, positions, _mask(seen))


def _mask(seen: torch.Tensor) -> torch.Tensor:
    """[rows, new, own tokens] truth to what is added to scores."""
    return torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)[:, None, None]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    parts: Sequence[Part],
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What the model's attention layers call; the module's docstring has the shapes."""
    layer = module.layer_idx
    assert isinstance(layer, int)
    outputs, first = [], 0
    for part in parts:
        rows = slice(first, first + part.rows)
        keys, values = _write(part, layer, key[rows], value[rows])
        outputs.append(_attend(part, layer, query[rows] * scaling, keys, values))
        first += part.rows
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)), None


def _write(
    part: Part, layer: int, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stores the new tokens; returns all own keys and values, [rows, heads, own tokens, dim]."""
    own = []
    for slots, new in ((part.slots.keys[layer], key), (part.slots.values[layer], value)):
        if part.positions is None:
            slots[: part.rows, :, part.start : part.start + new.shape[2]] = new
        else:
            slots[torch.arange(part.rows)[:, None], :, part.positions] = new.transpose(1, 2)
        own.append(slots[: part.rows, :, : part.mask.shape[-1]])
    return own[0], own[1]


def _attend(
    part: Part, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    rows, heads, new, dim = query.shape
    groups = keys.shape[1]
    grouped = query.reshape(rows, groups, -1, dim)
    scores = grouped @ keys.transpose(-1, -2)
    scores = (scores.view(rows, groups, -1, new, keys.shape[2]) + part.mask).view(scores.shape)
    if part.segment is None:
        output = scores.softmax(-1) @ values
    else:
        output = _with_segment(part.segment, layer, grouped, scores, values)
    return output.reshape(rows, heads, new, dim).transpose(1, 2)


def _with_segment(
    segment: Segment, layer: int, query: torch.Tensor, scores: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """`query`: [rows, groups, n, dim]. `scores`: of the own tokens, [rows, groups, n, own]."""
    rows, groups, count, dim = query.shape
    together = query.transpose(0, 1).reshape(groups, rows * count, dim)
    shared = together @ segment.keys[layer].transpose(-1, -2)
    shared = shared.view(groups, rows, count, segment.length).transpose(0, 1)
    weights = torch.cat([shared, scores], dim=-1).softmax(-1)
    shared = weights[..., : segment.length].transpose(0, 1).reshape(groups, rows * count, -1)
    output = (shared @ segment.values[layer]).view(groups, rows, count, dim).transpose(0, 1)
    return output + weights[..., segment.length :] @ values

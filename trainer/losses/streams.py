"""What a loss component reads: one number a trained token, in parallel.

Streams enter as tensors [m], where m counts the trained tokens of one micro-batch that weigh
something in the component; they carry nothing of how they were packed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flywheel.errors import BadRecord
from trainer.samples import STREAMS

if TYPE_CHECKING:
    import torch

    from trainer.packing import Packed


@dataclass(frozen=True)
class Streams:
    """Axis m everywhere. None = not known at every one of these tokens."""

    logprobs: "torch.Tensor"
    """Of the trained tokens under the weights being trained; carries the gradient."""
    weights: "torch.Tensor"
    """Greater than 0."""
    owners: "torch.Tensor"
    """Which sample of the micro-batch: for a loss that reduces by sequence."""
    pairs: "torch.Tensor | None" = None
    """Which pair of the micro-batch. None = a sample belongs to none."""
    behaviour_logprobs: "torch.Tensor | None" = None
    advantages: "torch.Tensor | None" = None
    proximal_logprobs: "torch.Tensor | None" = None
    teacher_logprobs: "torch.Tensor | None" = None
    reference_logprobs: "torch.Tensor | None" = None
    entropies: "torch.Tensor | None" = None
    """Of the distributions that the tokens are scored by; no gradient."""
    whole: Mapping[str, float] = field(default_factory=dict)
    """Sums over the whole step, beside the number of units: `Component.counted`."""


def streams_of(
    packed: "Packed",
    logprobs: "torch.Tensor",
    entropies: "torch.Tensor | None",
    component: str,
    needs: tuple[str, ...],
    whole: Mapping[str, float],
) -> Streams | None:
    """The trained tokens that weigh something in `component`; None where there is none.

    Raises:
        BadRecord: a sample lacks a stream that the component needs.
    """
    import torch

    rows = [
        (index, owner, at)
        for index, (owner, at) in enumerate(zip(packed.owners, packed.places, strict=True))
        if component in packed.samples[owner].weights
        and packed.samples[owner].weights[component][at] > 0
    ]
    if not rows:
        return None
    known = _known(packed, {owner: None for _, owner, _ in rows}, component, needs)

    def tensor(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=logprobs.dtype, device=logprobs.device)

    def indices(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=logprobs.device)

    kept = indices([index for index, _, _ in rows])
    pairs = [packed.samples[owner].pair_id for _, owner, _ in rows]
    order = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    return Streams(
        logprobs=logprobs[kept],
        weights=tensor([packed.samples[owner].weights[component][at] for _, owner, at in rows]),
        owners=indices([owner for _, owner, _ in rows]),
        pairs=None if None in order else indices([order[pair] for pair in pairs]),
        entropies=None if entropies is None else entropies.detach()[kept],
        whole=whole,
        **{
            name: tensor([values[owner][at] for _, owner, at in rows])
            for name, values in known.items()
        },
    )


def _known(
    packed: "Packed", owners: Iterable[int], component: str, needs: tuple[str, ...]
) -> dict[str, dict[int, tuple[float, ...]]]:
    """Stream -> owner -> its numbers, for the streams that all of `owners` have."""
    known: dict[str, dict[int, tuple[float, ...]]] = {}
    for name in STREAMS:
        values = {owner: getattr(packed.samples[owner], name) for owner in owners}
        lacking = [owner for owner, value in values.items() if value is None]
        if not lacking:
            known[name] = values
        elif name in needs:
            row = packed.samples[lacking[0]].row_id
            raise BadRecord(f"has no {name}, which the loss {component!r} needs", field=row)
    return known


def sums(values: "torch.Tensor", owners: "torch.Tensor") -> "torch.Tensor":
    """[owners + 1] of values [m]: their sum by owner; 0 where an owner has none."""
    import torch

    size = int(owners.max()) + 1
    return torch.zeros(size, dtype=values.dtype, device=values.device).index_add(0, owners, values)


def means(values: "torch.Tensor", owners: "torch.Tensor") -> "torch.Tensor":
    """[m]: at each token the mean of its owner's values."""
    import torch

    sizes = sums(torch.ones_like(values), owners)
    return (sums(values, owners) / sizes.clamp(min=1))[owners]

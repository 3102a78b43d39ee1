"""Losses: the table of components, and the one way in which they are summed.

A component is a pure function from per-token streams to the sum of its terms. The total is

    L = Σ_components  (component's sum) / (component's own number of units)

where units (tokens, sequences or pairs: the component says which) are counted over the whole
optimizer step, across all of its micro-batches and ranks: how a step was cut and packed changes
neither loss nor gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from flywheel.project import TrainSection
from trainer.losses.cross_entropy import cross_entropy
from trainer.losses.streams import Streams
from trainer.samples import STREAMS, Sample

if TYPE_CHECKING:
    import torch

    from trainer.packing import Packed


class Term(NamedTuple):
    """What a component says of one micro-batch."""

    total: "torch.Tensor"
    """Scalar: the sum over its units, with the gradient."""
    stats: "dict[str, torch.Tensor]" = {}  # noqa: RUF012
    """Name -> detached sum over its units: metrics divide by the same counts."""


class Component(NamedTuple):
    term: "Callable[[Streams, TrainSection], Term]"
    per: Literal["token", "sequence", "pair"] = "token"
    needs: tuple[str, ...] = ()
    """Streams without which it refuses."""


def _ce(streams: Streams, settings: TrainSection) -> Term:
    return Term(cross_entropy(streams))


COMPONENTS: dict[str, Component] = {
    "ce": Component(_ce),
}


@dataclass(frozen=True)
class Reduced:
    shares: "dict[str, torch.Tensor]"
    """Component -> this micro-batch's share of its part of the loss, with the gradient."""
    stats: dict[str, float] = field(default_factory=dict)
    """`component/name` -> this micro-batch's share of the step's mean. They add up over
    micro-batches and ranks."""


def count_units(samples: Sequence[Sample], settings: TrainSection) -> dict[str, int]:
    """Component -> its units that weigh something. Components nobody uses are absent."""
    counts: dict[str, int] = {}
    for sample in samples:
        for name, weights in sample.weights.items():
            counted = sum(1 for at in sample.targets if weights[at] > 0)
            if counted:
                counts[name] = counts.get(name, 0) + counted
    return counts


def reduce(
    packed: "Packed",
    logprobs: "torch.Tensor",
    counts: Mapping[str, int],
    settings: TrainSection,
    entropies: "torch.Tensor | None" = None,
) -> Reduced:
    """This micro-batch's share of each component of the step's loss.

    `logprobs` and `entropies` are [m], parallel to `packed.targets`; `counts` is `count_units` of
    the whole step, over all ranks.

    Raises:
        KeyError: a sample weighs in a component that is not in the table.
    """
    shares: dict[str, torch.Tensor] = {}
    stats: dict[str, float] = {}
    for name, count in counts.items():
        streams = _streams(packed, logprobs, name)
        if streams is None:
            continue
        term = COMPONENTS[name].term(streams, settings)
        shares[name] = term.total / count
        stats |= {f"{name}/{key}": float(value) / count for key, value in term.stats.items()}
    return Reduced(shares, stats)


def _streams(packed: "Packed", logprobs: "torch.Tensor", component: str) -> Streams | None:
    """The trained tokens that weigh something in `component`; None where there is none."""
    import torch

    rows = [
        (index, packed.samples[owner], at)
        for index, (owner, at) in enumerate(zip(packed.owners, packed.places, strict=True))
        if component in packed.samples[owner].weights
        and packed.samples[owner].weights[component][at] > 0
    ]
    if not rows:
        return None

    def tensor(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=logprobs.dtype, device=logprobs.device)

    optional: dict[str, torch.Tensor] = {}
    for name in STREAMS:
        known = [(getattr(sample, name), at) for _, sample, at in rows]
        if all(values is not None for values, _ in known):
            optional[name] = tensor([values[at] for values, at in known])
    kept = torch.tensor([index for index, _, _ in rows], device=logprobs.device)
    return Streams(
        logprobs=logprobs[kept],
        weights=tensor([sample.weights[component][at] for _, sample, at in rows]),
        owners=torch.tensor(packed.owners, device=logprobs.device)[kept],
        **optional,
    )

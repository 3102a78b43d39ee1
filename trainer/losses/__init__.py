"""Losses: the table of components, and the one way in which they are summed.

A component is a pure function from per-token streams to the sum of its terms. The total is

    L = Σ_components  (component's sum) / (component's own number of tokens)

where the number of tokens is counted over the whole optimizer step, across all of its
micro-batches: how a step was cut and packed changes neither loss nor gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from trainer.losses.cross_entropy import cross_entropy
from trainer.losses.streams import Streams
from trainer.samples import STREAMS, Sample

if TYPE_CHECKING:
    import torch

    from trainer.packing import Packed

Component = Callable[[Streams], "torch.Tensor"]

COMPONENTS: dict[str, Component] = {
    "ce": cross_entropy,
}


def count_tokens(samples: Sequence[Sample]) -> dict[str, int]:
    """Component -> trained tokens that weigh something in it. Components nobody uses are absent."""
    counts: dict[str, int] = {}
    for sample in samples:
        for name, weights in sample.weights.items():
            counted = sum(1 for at in sample.targets if weights[at] > 0)
            if counted:
                counts[name] = counts.get(name, 0) + counted
    return counts


def reduce(
    packed: "Packed", logprobs: "torch.Tensor", counts: Mapping[str, int]
) -> "dict[str, torch.Tensor]":
    """This micro-batch's share of each component of the step's loss.

    `logprobs` is [m], parallel to `packed.targets`; `counts` is the whole step's `count_tokens`.

    Raises:
        KeyError: a sample weighs in a component that is not in the table.
    """
    shares: dict[str, torch.Tensor] = {}
    for name, count in counts.items():
        streams = _streams(packed, logprobs, name)
        if streams is not None:
            shares[name] = COMPONENTS[name](streams) / count
    return shares


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

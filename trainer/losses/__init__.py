"""Losses: the table of components, and the one way in which they are summed.

A component is a pure function from per-token streams to the sum of its terms. The total is

    L = Σ_components  (component's sum) / (component's own number of units)

where units (tokens, sequences or pairs: the component says which) are counted over the whole
optimizer step, across all of its micro-batches and ranks: how a step was cut and packed changes
neither loss nor gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flywheel.train_section import TrainSection
from trainer.losses.contract import Component, Unit
from trainer.losses.cross_entropy import cross_entropy
from trainer.losses.distillation import distillation
from trainer.losses.preference import preference
from trainer.losses.reference_kl import reference_kl
from trainer.losses.reinforcement import policy
from trainer.losses.streams import streams_of
from trainer.losses.thumbs import thumbs
from trainer.samples import Sample

if TYPE_CHECKING:
    import torch

    from trainer.packing import Packed

COMPONENTS: dict[str, Callable[[TrainSection], Component]] = {
    "ce": cross_entropy,
    "rl": policy,
    "ref_kl": reference_kl,
    "distill": distillation,
    "dpo": preference,
    "kto": thumbs,
}
"""The name that samples weigh by -> the component, as the project's settings have it."""


@dataclass(frozen=True)
class Reduced:
    loss: "torch.Tensor"
    """Scalar: the sum of `shares`; hangs on the micro-batch's logprobs even where there are none,
    so that every rank has a backward pass."""
    shares: "dict[str, torch.Tensor]"
    """Component -> this micro-batch's share of its part of the loss, with the gradient."""
    stats: "dict[str, torch.Tensor]" = field(default_factory=dict)
    """`component/name` -> this micro-batch's share of the step's mean, a scalar without gradient.
    They add up over micro-batches and ranks; `settled` makes numbers of the sums."""


def count_units(samples: Sequence[Sample], settings: TrainSection) -> dict[str, float]:
    """Component -> its units that weigh something; `component/name` -> further sums over the step.
    Components nobody uses are absent. All of it adds up over samples, and so over ranks.

    Raises:
        KeyError: a sample weighs in a component that is not in the table.
        BadRecord: a component refuses a sample.
    """
    counts: dict[str, float] = {}
    for name in dict.fromkeys(name for sample in samples for name in sample.weights):
        weighing = {id(sample): _weighing(sample, name) for sample in samples}
        chosen = [sample for sample in samples if weighing[id(sample)]]
        if not chosen:
            continue
        component = COMPONENTS[name](settings)
        tokens = sum(weighing[id(sample)] for sample in chosen)
        further = dict(component.counted(chosen)) if component.counted else {}
        counts[name] = further.pop("units", _units(chosen, component.per, tokens))
        if component.per != "token":
            further["tokens"] = tokens
        counts |= {f"{name}/{key}": value for key, value in further.items()}
    return counts


def _weighing(sample: Sample, component: str) -> int:
    weights = sample.weights.get(component)
    return 0 if weights is None else sum(1 for at in sample.targets if weights[at] > 0)


def _units(samples: Sequence[Sample], per: Unit, tokens: int) -> int:
    if per == "token":
        return tokens
    return len(samples) if per == "sequence" else len({sample.pair_id for sample in samples})


def needs(sample: Sample, settings: TrainSection) -> frozenset[str]:
    """Streams that its losses need and it does not have: for the loop to fill in, where it can
    (`proximal_logprobs`, `reference_logprobs`), before the step is counted."""
    wanted: set[str] = set()
    for name in sample.weights:
        if _weighing(sample, name):
            component = COMPONENTS[name](settings)
            wanted.update(component.needs)
            wanted.update(component.needs_of(sample) if component.needs_of else ())
    return frozenset(name for name in wanted if getattr(sample, name) is None)


def reduce(
    packed: "Packed",
    logprobs: "torch.Tensor",
    counts: Mapping[str, float],
    settings: TrainSection,
    entropies: "torch.Tensor | None" = None,
) -> Reduced:
    """This micro-batch's share of each component of the step's loss.

    `logprobs` and `entropies` are [m], parallel to `packed.targets`; `counts` is `count_units` of
    the whole step, over all ranks. m may be 0.

    Raises:
        BadRecord: a sample lacks a stream that its loss needs.
    """
    shares: dict[str, torch.Tensor] = {}
    stats: dict[str, torch.Tensor] = {}
    for name in counts:
        if "/" in name:
            continue
        component = COMPONENTS[name](settings)
        whole = {
            key.removeprefix(f"{name}/"): value
            for key, value in counts.items()
            if key.startswith(f"{name}/")
        }
        streams = streams_of(packed, logprobs, entropies, name, component.needs, whole)
        if streams is None:
            continue
        term = component.term(streams, settings)
        units, tokens = max(counts[name], 1), whole.get("tokens", counts[name])
        shares[name] = term.total / units
        summed = dict(term.stats)
        if streams.entropies is not None:
            summed["entropy"] = streams.entropies.sum()
        stats |= {f"{name}/{key}": value.detach() / tokens for key, value in summed.items()}
        stats |= {f"{name}/{key}": each.detach() / units for key, each in term.unit_stats.items()}
    loss = sum(shares.values(), start=logprobs[:0].sum())
    return Reduced(loss, shares, stats)


def settled(stats: Mapping[str, float]) -> dict[str, float | None]:
    """The step's stats, summed over its micro-batches and ranks, as numbers to read: means over
    some of the tokens are taken over those (None = there were none), and moments of importance
    weights become the effective sample size, (Σ w)² / (n Σ w²), as a share of n (Kong 1992)."""
    told: dict[str, float | None] = {}
    for name, value in stats.items():
        component, _, key = name.partition("/")
        if key == "importance_squared":
            mean = stats[f"{component}/importance"]
            told[f"{component}/effective_sample_size"] = mean * mean / value if value else None
        elif "|" in key:
            key, _, over = key.partition("|")
            share = stats[f"{component}/{over}"]
            told[f"{component}/{key}"] = value / share if share else None
        else:
            told[name] = value
    return told

"""Streams that the trainer itself gives: logprobs under the weights that the run, or a step, starts
from. Samples enter without them where their losses need them, and leave with them.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import torch

from flywheel.train_section import TrainSection
from trainer.forward import score
from trainer.losses import COMPONENTS, needs
from trainer.packing import Packed, pack
from trainer.samples import Sample
from trainer.weights import Weights

REFERENCE, PROXIMAL = "reference_logprobs", "proximal_logprobs"


def fill(weights: Weights, samples: Sequence[Sample], settings: TrainSection) -> tuple[Sample, ...]:
    """Samples with what must be known before a step's units are counted: reference logprobs, and
    proximal ones where a component counts with them. Others are known for nothing as the step goes
    forward, by `fill_proximal`."""
    lacking = [needs(sample, settings) for sample in samples]
    filled = list(samples)
    for stream in (REFERENCE, PROXIMAL):
        places = [
            index
            for index, sample in enumerate(samples)
            if stream in lacking[index] and (stream == REFERENCE or _counts(sample, settings))
        ]
        if not places:
            continue
        chosen = [filled[index] for index in places]
        if stream == REFERENCE:
            with weights.as_started():
                found = _logprobs(weights, chosen, settings)
        else:
            found = _logprobs(weights, chosen, settings)
        for index, values in zip(places, found, strict=True):
            filled[index] = msgspec.structs.replace(filled[index], **{stream: values})
    return tuple(filled)


def fill_proximal(packed: Packed, logprobs: torch.Tensor, settings: TrainSection) -> Packed:
    """The micro-batch with `logprobs` [m] as proximal ones where they are needed and not there: one
    step trains a batch once, so the weights that it starts from are those it is computed under."""
    lacking = [PROXIMAL in needs(sample, settings) for sample in packed.samples]
    if not any(lacking):
        return packed
    values = _spread(packed, logprobs)
    samples = tuple(
        msgspec.structs.replace(sample, proximal_logprobs=own) if wanted else sample
        for sample, own, wanted in zip(packed.samples, values, lacking, strict=True)
    )
    return replace(packed, samples=samples)


def _counts(sample: Sample, settings: TrainSection) -> bool:
    return any(COMPONENTS[name](settings).counted is not None for name in sample.weights)


def _logprobs(
    weights: Weights, samples: Sequence[Sample], settings: TrainSection
) -> list[tuple[float, ...]]:
    """Of each sample, parallel to its tokens, under the weights as they are; 0 where it is not
    trained on. Each rank computes its share."""
    places: dict[int, int] = {}
    for index, sample in enumerate(samples):
        places.setdefault(id(sample), index)
    ranks = weights.ranks
    own: dict[int, tuple[float, ...]] = {}
    with torch.no_grad():
        for packed in pack(samples, settings.micro_tokens, ranks.world)[ranks.rank :: ranks.world]:
            values = _spread(packed, weights.apply(score, packed).logprobs)
            own |= {
                places[id(each)]: value for each, value in zip(packed.samples, values, strict=True)
            }
    together = {index: value for part in ranks.gathered(own) for index, value in part.items()}
    return [together[places[id(sample)]] for sample in samples]


def _spread(packed: Packed, logprobs: torch.Tensor) -> list[tuple[float, ...]]:
    """From [m] to each sample's own row, parallel to its tokens."""
    rows = [[0.0] * len(sample.token_ids) for sample in packed.samples]
    values = logprobs.detach().tolist()
    for owner, at, value in zip(packed.owners, packed.places, values, strict=True):
        rows[owner][at] = value
    return [tuple(row) for row in rows]

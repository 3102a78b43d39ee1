"""Kahneman-Tversky optimisation: answers that are known to be good or bad, each by itself.

    L = Σ_answers λ (1 - σ(± β (Δ - z))),    Δ = Σ_t (log π_θ - log π_ref),   + desirable, - not

Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization", eq. 8, with λ_y
the mean weight of the answer's tokens and β `train.beta`. An advantage above 0 says desirable,
below 0 undesirable. z = max(0, mean of Δ over mates), where a mate is a prompt with an answer to
another one: a sample of advantage 0, which trains nothing. z is taken over the whole step, under
the weights that the step starts from, and is a constant; without mates it is 0, as in APO-zero
(D'Oosterlinck et al. 2024, "Anchored Preference Optimization", eq. 8, its terms that are KTO's).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flywheel.errors import BadRecord
from flywheel.train_section import TrainSection
from trainer.losses.contract import Component, Term
from trainer.losses.streams import Streams, sums

if TYPE_CHECKING:
    from trainer.samples import Sample


def thumbs(settings: TrainSection) -> Component:
    needs = ("advantages", "reference_logprobs")
    return Component(_term, "sequence", needs, _counted, _needs_of)


def _needs_of(sample: "Sample") -> tuple[str, ...]:
    return ("proximal_logprobs",) if _is_mate(sample) else ()


def _is_mate(sample: "Sample") -> bool:
    advantages = sample.advantages
    return advantages is not None and not any(advantages[at] for at in sample.targets)


def _counted(samples: "Sequence[Sample]") -> Mapping[str, float]:
    """
    Raises:
        BadRecord: a mate lacks what its Δ is made of.
    """
    mates = [sample for sample in samples if _is_mate(sample)]
    total = 0.0
    for mate in mates:
        if mate.proximal_logprobs is None or mate.reference_logprobs is None:
            raise BadRecord(
                "a mate needs proximal_logprobs and reference_logprobs before its step is counted",
                field=mate.row_id,
            )
        now, reference = mate.proximal_logprobs, mate.reference_logprobs
        total += sum(now[at] - reference[at] for at in mate.targets)
    return {"units": len(samples) - len(mates), "mates": len(mates), "mates_gap": total}


def _term(streams: Streams, settings: TrainSection) -> Term:
    import torch

    reference, advantages = streams.reference_logprobs, streams.advantages
    assert reference is not None and advantages is not None
    mates = streams.whole.get("mates", 0)
    zero = max(0.0, streams.whole["mates_gap"] / mates) if mates else 0.0
    owners = streams.owners
    signs = sums(advantages, owners).sign()
    gaps = sums(streams.logprobs - reference, owners)
    sizes = sums(torch.ones_like(streams.weights), owners)
    weights = sums(streams.weights, owners) / sizes.clamp(min=1)
    losses = 1 - torch.sigmoid(signs * settings.beta * (gaps - zero))
    total = torch.where(signs != 0, weights * losses, 0.0).sum()
    rewards = settings.beta * gaps.detach()
    unit_stats = {
        "reference_point": torch.full_like(rewards, zero)[signs != 0].sum(),
        "desirable": (signs > 0).sum(),
        "reward_desirable|desirable": rewards[signs > 0].sum(),
        "undesirable": (signs < 0).sum(),
        "reward_undesirable|undesirable": rewards[signs < 0].sum(),
    }
    return Term(total, unit_stats=unit_stats)

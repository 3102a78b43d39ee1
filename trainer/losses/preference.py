"""Direct preference optimisation: of two answers to one prompt, the chosen one becomes likelier.

    L = - Σ_pairs w log σ(β (Δ_chosen - Δ_rejected)),    Δ = Σ_t (log π_θ - log π_ref)

Rafailov et al. 2023, "Direct Preference Optimization", eq. 7. The tokens of a pair's chosen answer
have an advantage above 0, those of the rejected one below; w is the mean weight of the pair's
tokens, and β is `train.beta`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flywheel.errors import BadRecord
from flywheel.train_section import TrainSection
from trainer.losses.contract import Component, Term
from trainer.losses.streams import Streams, sums

if TYPE_CHECKING:
    from trainer.samples import Sample


def preference(settings: TrainSection) -> Component:
    return Component(_term, "pair", ("advantages", "reference_logprobs"), _whole_pairs)


def _whole_pairs(samples: "Sequence[Sample]") -> Mapping[str, float]:
    """
    Raises:
        BadRecord: a sample is of no pair, or its pair's other half is not in the step.
    """
    signs: dict[str, set[bool]] = {}
    for sample in samples:
        if sample.pair_id is None:
            raise BadRecord("belongs to no pair, and its loss compares pairs", field=sample.row_id)
        advantages = sample.advantages or ()
        sides = {advantages[at] > 0 for at in sample.targets if advantages and advantages[at]}
        signs.setdefault(sample.pair_id, set()).update(sides)
    for pair, sides in signs.items():
        if len(sides) < 2:
            known = "chosen" if sides == {True} else "rejected"
            raise BadRecord(f"pair {pair} has only a {known} answer in this step", field=pair)
    return {}


def _term(streams: Streams, settings: TrainSection) -> Term:
    import torch

    reference, advantages, pairs = streams.reference_logprobs, streams.advantages, streams.pairs
    assert reference is not None and advantages is not None and pairs is not None
    gaps = streams.logprobs - reference
    chosen = sums(torch.where(advantages > 0, gaps, 0.0), pairs)
    rejected = sums(torch.where(advantages < 0, gaps, 0.0), pairs)
    margins = settings.beta * (chosen - rejected)
    losses = -torch.nn.functional.logsigmoid(margins)
    said = margins.detach()
    unit_stats = {
        "margin": said.sum(),
        "accuracy": (said > 0).sum(),
        "reward_chosen": settings.beta * chosen.detach().sum(),
        "reward_rejected": settings.beta * rejected.detach().sum(),
    }
    sizes = sums(torch.ones_like(streams.weights), pairs)
    weights = sums(streams.weights, pairs) / sizes
    return Term((weights * losses).sum(), unit_stats=unit_stats)

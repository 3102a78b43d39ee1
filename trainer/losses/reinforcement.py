"""The component "rl": the policy loss that `train.rl` names, its correction, and what they did.

    L = Σ_units Σ_t∈unit w_t c_t l_t(θ)

where l_t is of `trainer.losses.policy`, c_t of `trainer.losses.corrections` and a constant, and
units are the loss's own. Stats are means over tokens; those by sign are over tokens of that sign.
"""

from functools import partial
from typing import TYPE_CHECKING

from flywheel.train_section import RLSection, TrainSection
from trainer.losses.contract import Component, Term
from trainer.losses.corrections import correction
from trainer.losses.policy import POLICIES, PolicyLoss, Surrogate, region_of
from trainer.losses.ratios import k3, ratio
from trainer.losses.streams import Streams, sums

if TYPE_CHECKING:
    import torch


def policy(settings: TrainSection) -> Component:
    chosen = POLICIES[settings.rl.loss]
    return Component(partial(_term, chosen), chosen.per, _needs(chosen, settings.rl))


def _needs(loss: PolicyLoss, rl: RLSection) -> tuple[str, ...]:
    needs = ["advantages"]
    if rl.old_logprobs == "recomputed":
        needs.append("proximal_logprobs")
    if rl.correction != "none" or (loss.ratio and rl.old_logprobs == "behaviour"):
        needs.append("behaviour_logprobs")
    return tuple(needs)


def _term(loss: PolicyLoss, streams: Streams, settings: TrainSection) -> Term:
    import torch

    rl = settings.rl
    advantages, behaviour = streams.advantages, streams.behaviour_logprobs
    assert advantages is not None
    now = streams.logprobs.detach()
    recomputed = rl.old_logprobs == "recomputed" and streams.proximal_logprobs is not None
    own = streams.proximal_logprobs if recomputed else now
    old = own if recomputed else behaviour
    assert own is not None
    said = loss.surrogate(
        streams.logprobs, now if old is None else old, advantages, streams.owners, region_of(rl)
    )
    carried = loss.ratio and not recomputed
    factors = torch.ones_like(now)
    if behaviour is not None:
        factors = correction(own - behaviour, streams.owners, rl, carried=carried)
    weights = _inside(loss, streams, settings) * factors
    total = (weights * said.losses).sum()
    stats = _by_sign(advantages, said, factors)
    if behaviour is not None:
        taken = ratio(now, old if old is not None else now) if loss.ratio else 1.0
        stats |= _importance(factors * taken)
        stats["mismatch_kl"] = k3(behaviour, own).sum()
        stats["mismatch_probability"] = (own.exp() - behaviour.exp()).abs().sum()
    return Term(total, stats)


def _inside(loss: PolicyLoss, streams: Streams, settings: TrainSection) -> "torch.Tensor":
    """[m] the weights, by what is made of one unit's tokens."""
    match loss.inside:
        case "sum":
            return streams.weights
        case "constant":
            return streams.weights / settings.micro_tokens
        case "mean":
            sizes = sums(streams.weights.new_ones(streams.weights.shape), streams.owners)
            return streams.weights / sizes[streams.owners]


def _by_sign(
    advantages: "torch.Tensor", said: Surrogate, factors: "torch.Tensor"
) -> "dict[str, torch.Tensor]":
    stats: dict[str, torch.Tensor] = {}
    for sign, chosen in (("positive", advantages > 0), ("negative", advantages < 0)):
        stats[sign] = chosen.sum()
        stats[f"clipped_{sign}|{sign}"] = (said.limited & chosen).sum()
        stats[f"masked_{sign}|{sign}"] = ((factors == 0) & chosen).sum()
    return stats


def _importance(weights: "torch.Tensor") -> "dict[str, torch.Tensor]":
    """Moments of the importance weights, of which the effective sample size is made."""
    return {"importance": weights.sum(), "importance_squared": weights.square().sum()}

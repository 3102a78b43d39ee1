"""Policy losses, one function each: what a trained token adds to the loss, before its weight.

Enter log π_θ (with the gradient), log π_old, advantages and the trust region's bounds; leaves
[m] losses and where the bounds cut the gradient off. r_t = π_θ / π_old. The advantage is Â_t.
π_old is the engine's policy as it sampled, or the trainer's own before the step, as
`train.rl.old_logprobs` says.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

from flywheel.train_section import RLSection
from trainer.losses.contract import Unit
from trainer.losses.ratios import ratio
from trainer.losses.streams import means

if TYPE_CHECKING:
    import torch

DPPO_KL = 1e-3
"""τ of DPPO's squared log ratio."""


class Region(NamedTuple):
    low: float
    high: float


class Surrogate(NamedTuple):
    losses: "torch.Tensor"
    """[m]"""
    limited: "torch.Tensor"
    """[m] bool: the region's bound holds the policy term's gradient back here."""


Surrogates = Callable[
    ["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor", Region], Surrogate
]
"""(logprobs, old, advantages, owners, region), all [m] but the region."""


def dppo(
    logprobs: "torch.Tensor",
    old: "torch.Tensor",
    advantages: "torch.Tensor",
    owners: "torch.Tensor",
    region: Region,
) -> Surrogate:
    """- M_t r_t Â_t + τ (log r_t)², where M_t = 0 if Â_t > 0 and π_θ - π_old > δ_high, or Â_t < 0
    and π_old - π_θ > δ_low, else 1.

    The mask bounds the total variation of the policy, as the sampled token tells it, and not its
    ratio: rare tokens may move freely, common ones may not. Qi et al. 2026, "Rethinking the Trust
    Region in LLM Reinforcement Learning" (DPPO, its binary TV approximation; δ = 0.2). The square
    is that of Kimi Team 2026, "Kimi K2.5", in its RL objective: half of it is an estimate of the KL
    of two near policies, and it pulls masked tokens back too.
    """
    import torch

    moved = logprobs.detach().exp() - old.exp()
    limited = torch.where(advantages > 0, moved > region.high, moved < -region.low)
    limited = limited & (advantages != 0)
    policy = -ratio(logprobs, old) * advantages
    return Surrogate(
        torch.where(limited, 0.0, policy) + DPPO_KL * (logprobs - old).square(), limited
    )


def clipped(
    logprobs: "torch.Tensor",
    old: "torch.Tensor",
    advantages: "torch.Tensor",
    owners: "torch.Tensor",
    region: Region,
) -> Surrogate:
    """- min(r_t Â_t, clip(r_t, 1 - ε_low, 1 + ε_high) Â_t).

    Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7. A mean over each
    sequence's tokens, then over sequences, is GRPO: Shao et al. 2024, "DeepSeekMath", eq. 3. A mean
    over all tokens with ε_high > ε_low is DAPO: Yu et al. 2025, eq. 8. Each sequence's sum over a
    constant is Dr. GRPO: Liu et al. 2025, "Understanding R1-Zero-Like Training", section 3.
    """
    return _clip(ratio(logprobs, old), advantages, region)


def gspo(
    logprobs: "torch.Tensor",
    old: "torch.Tensor",
    advantages: "torch.Tensor",
    owners: "torch.Tensor",
    region: Region,
) -> Surrogate:
    """The clip of s_t Â_t, where s_t = sg[s] π_θ / sg[π_θ], and s = (Π_t r_t)^(1/|y|) is its
    sequence's geometric mean.

    Zheng et al. 2025, "Group Sequence Policy Optimization", eq. 5, 7 and, for advantages that
    differ within a sequence, its GSPO-token, eq. 13 and 14.
    """
    mean = means((logprobs - old).detach(), owners)
    return _clip(ratio(logprobs, logprobs.detach() - mean), advantages, region)


def _clip(ratios: "torch.Tensor", advantages: "torch.Tensor", region: Region) -> Surrogate:
    import torch

    free = ratios * advantages
    bound = ratios.clamp(1 - region.low, 1 + region.high) * advantages
    return Surrogate(-torch.minimum(free, bound), bound < free)


def cispo(
    logprobs: "torch.Tensor",
    old: "torch.Tensor",
    advantages: "torch.Tensor",
    owners: "torch.Tensor",
    region: Region,
) -> Surrogate:
    """- sg[clip(r_t, 1 - ε_low, 1 + ε_high)] Â_t log π_θ: weights are bounded, no token is lost.

    MiniMax 2025, "MiniMax-M1", eq. 4 and 5: no lower bound. ε_high = 4 as in Khatri et al. 2025,
    "The Art of Scaling Reinforcement Learning Compute for LLMs".
    """
    import torch

    ratios = ratio(logprobs, old).detach()
    held = ratios.clamp(1 - region.low, 1 + region.high)
    return Surrogate(-held * advantages * logprobs, torch.ne(held, ratios) & (advantages != 0))


def reinforce(
    logprobs: "torch.Tensor",
    old: "torch.Tensor",
    advantages: "torch.Tensor",
    owners: "torch.Tensor",
    region: Region,
) -> Surrogate:
    """- Â_t log π_θ. Williams 1992, "Simple Statistical Gradient-Following Algorithms for
    Connectionist Reinforcement Learning". It has no ratio: whoever samples from an older
    policy wants a correction."""
    import torch

    return Surrogate(-advantages * logprobs, torch.zeros_like(logprobs, dtype=torch.bool))


class PolicyLoss(NamedTuple):
    surrogate: Surrogates
    region: Region
    """Where the project names none."""
    per: Unit = "token"
    inside: Literal["sum", "mean", "constant"] = "sum"
    """What is made of one unit's tokens; constant = their sum over `train.micro_tokens`, which no
    sequence can be longer than."""
    ratio: bool = True
    """Whether it weighs tokens by their ratio to π_old."""


POLICIES: dict[str, PolicyLoss] = {
    "dppo": PolicyLoss(dppo, Region(0.2, 0.2)),
    "grpo": PolicyLoss(clipped, Region(0.2, 0.2), "sequence", "mean"),
    "dapo": PolicyLoss(clipped, Region(0.2, 0.28)),
    "dr_grpo": PolicyLoss(clipped, Region(0.2, 0.2), "sequence", "constant"),
    "gspo": PolicyLoss(gspo, Region(3e-4, 4e-4), "sequence", "mean"),
    "cispo": PolicyLoss(cispo, Region(1.0, 4.0)),
    "reinforce": PolicyLoss(reinforce, Region(1.0, 1.0), ratio=False),
}


def region_of(rl: RLSection) -> Region:
    """The loss's trust region, as the project has it."""
    usual = POLICIES[rl.loss].region
    return Region(
        usual.low if rl.clip_low is None else rl.clip_low,
        usual.high if rl.clip_high is None else rl.clip_high,
    )

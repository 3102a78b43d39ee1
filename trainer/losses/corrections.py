"""Corrections of the mismatch between who sampled the tokens and who is trained on them.

Enters ρ_t = π_old / μ, the ratio of the trainer's own probability to that which the engine gave as
it sampled; leaves a weight for each token, a constant of the gradient:

- `tis`            min(ρ_t, C), C = 2. Truncated importance sampling, Yao et al. 2025, "Your
                   Efficient RL Framework Secretly Brings You Off-Policy RL Training".
- `icepop`         ρ_t where α ≤ ρ_t ≤ β, else 0; α = 0.5, β = 5. Ling Team 2025,
                   "Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale Thinking
                   Model", its IcePop.
- `sequence_mask`  ρ_t in sequences whose geometric mean of ρ lies within its bounds, 0 in all of
                   the others; 0.5 and 2. Liu et al. 2025, "When Speed Kills Stability: Demystifying
                   RL Collapse from the Training-Inference Mismatch" (sequence-level masked
                   importance sampling), its ratio taken by length so that long answers are not
                   masked for being long.

Where old log-probabilities are not recomputed, π_old is the policy being trained and the ratios of
most losses are taken to μ already: of ρ_t only what the correction makes of it is left, 1 or 0 or,
of `tis`, C / ρ_t.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

from flywheel.train_section import RLSection
from trainer.losses.ratios import LARGEST
from trainer.losses.streams import means

if TYPE_CHECKING:
    import torch

Kind = Literal["none", "tis", "icepop", "sequence_mask"]


class Bounds(NamedTuple):
    low: float
    high: float


BOUNDS: dict[Kind, Bounds] = {
    "none": Bounds(0.0, float("inf")),
    "tis": Bounds(0.0, 2.0),
    "icepop": Bounds(0.5, 5.0),
    "sequence_mask": Bounds(0.5, 2.0),
}
"""Where the project names none."""


def bounds_of(rl: RLSection) -> Bounds:
    """The correction's, as the project has them."""
    usual = BOUNDS[rl.correction]
    return Bounds(
        usual.low if rl.correction_low is None else rl.correction_low,
        usual.high if rl.correction_high is None else rl.correction_high,
    )


def correction(
    log_ratios: "torch.Tensor", owners: "torch.Tensor", rl: RLSection, *, carried: bool
) -> "torch.Tensor":
    """[m] the weight of each token; 0 = masked.

    Args:
        log_ratios: [m] log ρ, detached.
        carried: whether the loss has ρ in it already.
    """
    import torch

    low, high = bounds_of(rl)
    bounded = log_ratios.clamp(-LARGEST, LARGEST)
    plain = torch.ones_like(bounded) if carried else bounded.exp()
    match rl.correction:
        case "none":
            return torch.ones_like(bounded)
        case "tis":
            return plain * (high / bounded.exp()).clamp(max=1.0)
        case "icepop":
            judged = bounded.exp()
        case "sequence_mask":
            judged = means(bounded, owners).exp()
    return torch.where((judged >= low) & (judged <= high), plain, 0.0)

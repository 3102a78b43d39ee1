"""What a loss component reads: one number a trained token, in parallel.

Streams enter as tensors [m], where m counts the trained tokens of one micro-batch that weigh
something in the component; they carry nothing of how they were packed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Streams:
    """Axis m everywhere. None = not known at every one of these tokens."""

    logprobs: "torch.Tensor"
    """Of the trained tokens under the weights being trained; carries the gradient."""
    weights: "torch.Tensor"
    """Greater than 0."""
    owners: "torch.Tensor"
    """Which sample of the micro-batch: for a loss that reduces by sequence or pair."""
    behaviour_logprobs: "torch.Tensor | None" = None
    advantages: "torch.Tensor | None" = None
    proximal_logprobs: "torch.Tensor | None" = None
    teacher_logprobs: "torch.Tensor | None" = None
    reference_logprobs: "torch.Tensor | None" = None

"""Importance ratios, taken in logarithms and bounded before they are exponentiated."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LARGEST = 20.0
"""Of a log ratio, both ways: past e^20 a ratio says only that the two have nothing in common, and
in float32 it would soon be infinite."""


def ratio(logprobs: "torch.Tensor", to: "torch.Tensor") -> "torch.Tensor":
    """[m] p / q of log p and log q; the gradient goes through both."""
    return (logprobs - to).clamp(-LARGEST, LARGEST).exp()


def k3(of: "torch.Tensor", to: "torch.Tensor") -> "torch.Tensor":
    """[m] q/p - 1 - log q/p: an estimate of KL(p‖q) from samples of p that is never negative.

    Schulman 2020, "Approximating KL Divergence" (k3).

    Args:
        of: log p of whom the tokens were sampled from.
        to: log q.
    """
    log_ratio = (to - of).clamp(-LARGEST, LARGEST)
    return log_ratio.exp() - 1 - log_ratio

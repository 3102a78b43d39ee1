"""Seven tokens of three sequences, and a check of value and gradient against a float64 oracle."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from flywheel.train_section import TrainSection
from trainer.losses import COMPONENTS
from trainer.losses.contract import Term
from trainer.losses.streams import Streams

OWNERS = (0, 0, 0, 1, 1, 2, 2)
NOW = (-0.2, -1.1, -2.3, -0.05, -0.9, -1.7, -0.4)
BEHAVIOUR = (-0.5, -1.0, -3.9, -0.45, -0.3, -1.75, -1.2)
PROXIMAL = (-0.25, -1.3, -2.9, -0.1, -0.8, -1.6, -0.5)
REFERENCE = (-0.6, -0.9, -2.0, -0.3, -1.4, -1.2, -0.7)
TEACHER = (-0.1, -1.5, -0.7, -0.6, -0.2, -2.0, -0.9)
ADVANTAGES = (1.5, 1.5, 1.5, -0.7, -0.7, 0.4, -2.0)
WEIGHTS = (1.0, 0.5, 1.0, 2.0, 1.0, 1.0, 0.25)

Oracle = Callable[[Sequence[float], Sequence[float]], float]
"""The loss of log probabilities, and of those at which what is held constant is taken."""


def made(**changes: Any) -> Streams:
    """Streams in float64; a change to None leaves the stream out."""
    numbers = {
        "logprobs": NOW,
        "weights": WEIGHTS,
        "behaviour_logprobs": BEHAVIOUR,
        "proximal_logprobs": PROXIMAL,
        "reference_logprobs": REFERENCE,
        "teacher_logprobs": TEACHER,
        "advantages": ADVANTAGES,
    }
    whole = {"pairs": None, "whole": {}} | {
        name: changes.pop(name) for name in ("pairs", "whole") if name in changes
    }
    given = {
        name: None if values is None else torch.tensor(values, dtype=torch.float64)
        for name, values in (numbers | changes).items()
    }
    return Streams(owners=torch.tensor(OWNERS), **given, **whole)  # type: ignore[arg-type]


def said(name: str, streams: Streams, train: dict[str, Any] | None = None) -> Term:
    settings = TrainSection.model_validate(train or {})
    return COMPONENTS[name](settings).term(streams, settings)


def agree(
    name: str,
    oracle: Oracle,
    streams: Streams,
    train: dict[str, Any] | None = None,
    *,
    smooth: bool = False,
) -> Term:
    """Value and gradient of a component are the oracle's: the gradient is that of its central
    differences, where what the loss holds constant stays at the point.

    Args:
        smooth: the loss holds nothing constant, so that torch's own gradcheck holds too.
    """
    leaf = streams.logprobs.clone().requires_grad_()
    term = said(name, replace(streams, logprobs=leaf), train)
    at = leaf.detach().tolist()
    assert float(term.total.detach()) == pytest.approx(oracle(at, at), rel=1e-12, abs=1e-14)
    (slope,) = torch.autograd.grad(term.total, leaf)
    for index, value in enumerate(slope.tolist()):
        step = 1e-6
        up, down = list(at), list(at)
        up[index] += step
        down[index] -= step
        assert value == pytest.approx(
            (oracle(up, at) - oracle(down, at)) / (2 * step), rel=1e-7, abs=1e-9
        ), index
    if smooth:
        assert torch.autograd.gradcheck(
            lambda given: said(name, replace(streams, logprobs=given), train).total, leaf
        )
    return term


def tokens(sequence: int) -> list[int]:
    return [index for index, owner in enumerate(OWNERS) if owner == sequence]


def geometric(ones: Sequence[float], others: Sequence[float], sequence: int) -> float:
    """Mean of the ratios' logarithms over a sequence, exponentiated."""
    places = tokens(sequence)
    return math.exp(math.fsum(ones[at] - others[at] for at in places) / len(places))

"""Each policy loss against an oracle in plain floats, value and gradient."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.trainer.losses.conftest import (
    ADVANTAGES,
    BEHAVIOUR,
    NOW,
    OWNERS,
    PROXIMAL,
    WEIGHTS,
    agree,
    geometric,
    made,
    said,
    tokens,
)

PLACES = range(len(NOW))


def rl(loss: str, **more: Any) -> dict[str, Any]:
    return {"rl": {"loss": loss, **more}, "micro_tokens": 64}


def clip(ratio: float, advantage: float, low: float, high: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


@pytest.mark.parametrize("old_logprobs", ["behaviour", "recomputed"])
def test_dppo(old_logprobs: str) -> None:
    old = BEHAVIOUR if old_logprobs == "behaviour" else PROXIMAL
    masked = []

    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        total = 0.0
        for at in PLACES:
            ratio = math.exp(now[at] - old[at])
            moved = math.exp(point[at]) - math.exp(old[at])
            beyond = moved > 0.1 if ADVANTAGES[at] > 0 else moved < -0.15
            masked.append(beyond)
            policy = 0.0 if beyond else -ratio * ADVANTAGES[at]
            total += WEIGHTS[at] * (policy + 1e-3 * (now[at] - old[at]) ** 2)
        return total

    train = rl("dppo", clip_low=0.15, clip_high=0.1, old_logprobs=old_logprobs, max_staleness=0)
    agree("rl", oracle, made(), train, smooth=True)
    assert not all(masked)
    assert any(masked) == (old_logprobs == "behaviour")


@pytest.mark.parametrize(
    ("loss", "high", "inside"), [("grpo", 0.2, "mean"), ("dapo", 0.28, "sum"), ("dr_grpo", 0.2, 64)]
)
def test_the_clipped_losses(loss: str, high: float, inside: str | int) -> None:
    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        total = 0.0
        for at in PLACES:
            one = clip(math.exp(now[at] - BEHAVIOUR[at]), ADVANTAGES[at], 0.2, high)
            size = {"mean": len(tokens(OWNERS[at])), "sum": 1}.get(str(inside), 64)
            total += WEIGHTS[at] * one / size
        return total

    term = agree("rl", oracle, made(), rl(loss), smooth=True)
    ratios = [math.exp(now - old) for now, old in zip(NOW, BEHAVIOUR, strict=True)]
    over = sum(r > 1 + high and a > 0 for r, a in zip(ratios, ADVANTAGES, strict=True))
    under = sum(r < 0.8 and a < 0 for r, a in zip(ratios, ADVANTAGES, strict=True))
    assert over and under
    assert float(term.stats["clipped_positive|positive"]) == over
    assert float(term.stats["clipped_negative|negative"]) == under
    assert (float(term.stats["positive"]), float(term.stats["negative"])) == (4, 3)


def test_a_clip_of_ones_own() -> None:
    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        return math.fsum(
            WEIGHTS[at] * clip(math.exp(now[at] - BEHAVIOUR[at]), ADVANTAGES[at], 0.6, 0.9)
            for at in PLACES
        )

    agree("rl", oracle, made(), rl("dapo", clip_low=0.6, clip_high=0.9))


@pytest.mark.parametrize("bound", [None, 0.9])
def test_gspo_takes_the_ratio_of_the_sequence(bound: float | None) -> None:
    low, high = (3e-4, 4e-4) if bound is None else (bound, bound)

    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        total = 0.0
        for at in PLACES:
            sequence = geometric(point, BEHAVIOUR, OWNERS[at])
            ratio = sequence * math.exp(now[at] - point[at])
            size = len(tokens(OWNERS[at]))
            total += WEIGHTS[at] * clip(ratio, ADVANTAGES[at], low, high) / size
        return total

    agree("rl", oracle, made(), rl("gspo", clip_low=bound, clip_high=bound))


def test_gspo_of_one_advantage_is_the_sequences_own_surrogate() -> None:
    """Without the stop-gradient's trick: (Π r)^(1/n) Â, differentiated as it stands."""
    advantages = tuple((1.0, -0.5, 2.0)[owner] for owner in OWNERS)

    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        return -math.fsum(
            geometric(now, BEHAVIOUR, one) * advantages[tokens(one)[0]] for one in (0, 1, 2)
        )

    streams = made(advantages=advantages, weights=(1.0,) * len(NOW))
    agree("rl", oracle, streams, rl("gspo", clip_low=9.0, clip_high=9.0))


def test_cispo_weighs_by_a_bounded_constant() -> None:
    held = []

    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        total = 0.0
        for at in PLACES:
            ratio = math.exp(point[at] - BEHAVIOUR[at])
            held.append(ratio > 1.7)
            total -= WEIGHTS[at] * min(ratio, 1.7) * ADVANTAGES[at] * now[at]
        return total

    agree("rl", oracle, made(), rl("cispo", clip_high=0.7))
    assert any(held) and not all(held)


def test_reinforce_needs_nobodys_logprobs() -> None:
    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        return -math.fsum(WEIGHTS[at] * ADVANTAGES[at] * now[at] for at in PLACES)

    streams = made(behaviour_logprobs=None, proximal_logprobs=None)
    term = agree("rl", oracle, streams, rl("reinforce"), smooth=True)
    assert "mismatch_kl" not in term.stats


def test_where_nothing_moved_every_token_loss_has_the_policy_gradient() -> None:
    """r = 1 everywhere: - w Â, whatever the loss makes of ratios; DPPO's KL has no slope there."""
    for loss in ("dppo", "dapo", "cispo", "reinforce"):
        leaf = torch.tensor(NOW, dtype=torch.float64, requires_grad=True)
        streams = made(behaviour_logprobs=NOW)
        object.__setattr__(streams, "logprobs", leaf)
        (slope,) = torch.autograd.grad(said("rl", streams, rl(loss)).total, leaf)
        wanted = [-weight * one for weight, one in zip(WEIGHTS, ADVANTAGES, strict=True)]
        assert slope.tolist() == pytest.approx(wanted), loss


def test_far_ratios_stay_finite() -> None:
    leaf = torch.full((7,), -1e4, requires_grad=True)
    streams = made(behaviour_logprobs=(-1e-3,) * 7)
    for now in (leaf, -leaf * 0 - 1e-3):
        for loss in ("dppo", "grpo", "gspo", "cispo"):
            object.__setattr__(streams, "logprobs", now)
            other = made(behaviour_logprobs=(-1e4,) * 7)
            object.__setattr__(other, "logprobs", now)
            for given in (streams, other):
                assert torch.isfinite(said("rl", given, rl(loss)).total), loss

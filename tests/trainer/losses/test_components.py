"""Reference KL, distillation, preferences and thumbs against oracles in plain floats."""

import math
from collections.abc import Sequence

import pytest
import torch

from tests.trainer.losses.conftest import (
    BEHAVIOUR,
    NOW,
    OWNERS,
    REFERENCE,
    TEACHER,
    WEIGHTS,
    agree,
    made,
    said,
    tokens,
)

PLACES = range(len(NOW))


def test_cross_entropy() -> None:
    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        return -math.fsum(WEIGHTS[at] * now[at] for at in PLACES)

    agree("ce", oracle, made(), smooth=True)


@pytest.mark.parametrize("sampled", [True, False])
def test_reference_kl(sampled: bool) -> None:
    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        return math.fsum(
            WEIGHTS[at]
            * (min(math.exp(point[at] - BEHAVIOUR[at]), 2.0) if sampled else 1.0)
            * 0.5
            * (now[at] - REFERENCE[at]) ** 2
            for at in PLACES
        )

    streams = made() if sampled else made(behaviour_logprobs=None)
    term = agree("ref_kl", oracle, streams, smooth=not sampled)
    kl = math.fsum(
        math.exp(REFERENCE[at] - NOW[at]) - 1 - (REFERENCE[at] - NOW[at]) for at in PLACES
    )
    assert float(term.stats["kl"]) == pytest.approx(kl)


@pytest.mark.parametrize("sampled", [True, False])
def test_distillation(sampled: bool) -> None:
    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        total = 0.0
        for at in PLACES:
            old = BEHAVIOUR[at] if sampled else point[at]
            held = min(1.0, 2.0 / math.exp(point[at] - old))
            total += WEIGHTS[at] * held * math.exp(now[at] - old) * (point[at] - TEACHER[at])
        return total

    streams = made() if sampled else made(behaviour_logprobs=None)
    term = agree("distill", oracle, streams)
    assert float(term.stats["reverse_kl"]) == pytest.approx(math.fsum(NOW) - math.fsum(TEACHER))


def expected_slope(name: str, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Over all of a small vocabulary, each token once and weighed by its probability: the gradient
    by the logits that a component has on samples of the policy, and that of KL(π‖other)."""
    logits = torch.linspace(-1.0, 1.5, 7, dtype=torch.float64).requires_grad_()
    logprobs = logits.log_softmax(0)
    each = logprobs.detach().exp()
    numbers = {
        "reference_logprobs": tuple(other.tolist()),
        "teacher_logprobs": tuple(other.tolist()),
    }
    streams = made(weights=tuple(each.tolist()), behaviour_logprobs=None, **numbers)
    object.__setattr__(streams, "logprobs", logprobs)
    (own,) = torch.autograd.grad(said(name, streams).total, logits, retain_graph=True)
    kl = (logprobs.exp() * (logprobs - other)).sum()
    (true,) = torch.autograd.grad(kl, logits)
    return own, true


@pytest.mark.parametrize("name", ["ref_kl", "distill"])
def test_on_its_own_samples_the_gradient_is_that_of_the_reverse_kl(name: str) -> None:
    other = torch.tensor([0.3, -0.2, 1.0, 0.1, -1.0, 0.5, 0.0], dtype=torch.float64).log_softmax(0)
    own, true = expected_slope(name, other)
    torch.testing.assert_close(own, true)


CHOSEN = (1.0, 1.0, 1.0, -1.0, -1.0, 1.0, -1.0)


def test_dpo() -> None:
    pairs = (0, 0, 0, 0, 0, 1, 1)

    def margin(now: Sequence[float], pair: int) -> float:
        return 0.3 * math.fsum(
            CHOSEN[at] * (now[at] - REFERENCE[at]) for at in PLACES if pairs[at] == pair
        )

    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        total = 0.0
        for pair in (0, 1):
            weights = [WEIGHTS[at] for at in PLACES if pairs[at] == pair]
            weight = math.fsum(weights) / len(weights)
            total += weight * math.log1p(math.exp(-margin(now, pair)))
        return total

    streams = made(advantages=CHOSEN, pairs=torch.tensor(pairs))
    term = agree("dpo", oracle, streams, {"beta": 0.3}, smooth=True)
    margins = [margin(NOW, 0), margin(NOW, 1)]
    assert float(term.unit_stats["margin"]) == pytest.approx(math.fsum(margins))
    assert float(term.unit_stats["accuracy"]) == sum(one > 0 for one in margins)


@pytest.mark.parametrize(
    ("whole", "zero"),
    [({}, 0.0), ({"mates": 4, "mates_gap": 2.0}, 0.5), ({"mates": 4, "mates_gap": -2.0}, 0.0)],
)
def test_kto(whole: dict[str, float], zero: float) -> None:
    signs = (1, -1, 0)

    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        total = 0.0
        for sequence, sign in enumerate(signs):
            places = tokens(sequence)
            gap = math.fsum(now[at] - REFERENCE[at] for at in places)
            weight = math.fsum(WEIGHTS[at] for at in places) / len(places)
            value = 1 / (1 + math.exp(-sign * 0.3 * (gap - zero)))
            total += weight * (1 - value) if sign else 0.0
        return total

    advantages = tuple(float(signs[owner]) for owner in OWNERS)
    streams = made(advantages=advantages, whole=whole)
    term = agree("kto", oracle, streams, {"beta": 0.3}, smooth=True)
    assert float(term.unit_stats["desirable"]) == float(term.unit_stats["undesirable"]) == 1
    assert float(term.unit_stats["reference_point"]) == pytest.approx(2 * zero)

"""Corrections, where old log-probabilities are recomputed and where they are the engine's."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

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
)
from trainer.losses import settled

PLACES = range(len(NOW))
BOUNDS = {"tis": (0.0, 1.4), "icepop": (0.6, 1.4), "sequence_mask": (0.7, 1.4)}


def corrected(kind: str, own: Sequence[float], at: int) -> tuple[float, float]:
    """(ρ, what the correction makes of it)."""
    low, high = BOUNDS[kind]
    ratio = math.exp(own[at] - BEHAVIOUR[at])
    if kind == "tis":
        return ratio, min(ratio, high)
    judged = geometric(own, BEHAVIOUR, OWNERS[at]) if kind == "sequence_mask" else ratio
    return ratio, ratio if low <= judged <= high else 0.0


def settings(kind: str, **more: Any) -> dict[str, Any]:
    low, high = BOUNDS[kind]
    return {"rl": {"correction": kind, "correction_low": low, "correction_high": high, **more}}


@pytest.mark.parametrize("kind", list(BOUNDS))
def test_recomputed_ratios_are_multiplied_by_the_corrected_mismatch(kind: str) -> None:
    kept = []

    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        total = 0.0
        for at in PLACES:
            ratio = math.exp(now[at] - PROXIMAL[at])
            surrogate = -min(ratio * ADVANTAGES[at], min(max(ratio, 0.8), 1.28) * ADVANTAGES[at])
            weight = corrected(kind, PROXIMAL, at)[1]
            kept.append(weight > 0)
            total += WEIGHTS[at] * weight * surrogate
        return total

    train = settings(kind, loss="dapo", old_logprobs="recomputed")
    term = agree("rl", oracle, made(), train, smooth=True)
    assert any(kept) and all(kept) == (kind == "tis")
    masked = sum(float(term.stats[f"masked_{one}|{one}"]) for one in ("positive", "negative"))
    assert masked == sum(not one for one in kept[: len(NOW)])


@pytest.mark.parametrize("kind", list(BOUNDS))
def test_ratios_to_the_engine_are_not_weighed_twice(kind: str) -> None:
    """The whole weight that a token has in the gradient is the corrected ratio, no more."""

    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        total = 0.0
        for at in PLACES:
            ratio, weight = corrected(kind, point, at)
            total -= (
                WEIGHTS[at] * weight / ratio * math.exp(now[at] - BEHAVIOUR[at]) * ADVANTAGES[at]
            )
        return total

    train = settings(kind, loss="dapo", clip_low=50.0, clip_high=50.0)
    term = agree("rl", oracle, made(), train)
    weights = [corrected(kind, NOW, at)[1] for at in PLACES]
    stats = settled({f"rl/{name}": float(one) / 7 for name, one in term.stats.items()})
    size = math.fsum(weights) ** 2 / (7 * math.fsum(one * one for one in weights))
    assert stats["rl/effective_sample_size"] == pytest.approx(size)
    assert stats["rl/importance"] == pytest.approx(math.fsum(weights) / 7)


@pytest.mark.parametrize("kind", list(BOUNDS))
def test_reinforce_is_weighed_by_the_corrected_ratio(kind: str) -> None:
    def oracle(now: Sequence[float], point: Sequence[float]) -> float:
        return -math.fsum(
            WEIGHTS[at] * corrected(kind, point, at)[1] * ADVANTAGES[at] * now[at] for at in PLACES
        )

    agree("rl", oracle, made(), settings(kind, loss="reinforce"))


def test_mismatch_is_told_as_the_kl_of_engine_and_trainer() -> None:
    still, train = (0.0,) * 7, {"rl": {"loss": "grpo"}}
    term = agree("rl", lambda now, point: 0.0, made(advantages=still), train)
    kl = math.fsum(
        math.exp(now - old) - 1 - (now - old) for now, old in zip(NOW, BEHAVIOUR, strict=True)
    )
    assert float(term.stats["mismatch_kl"]) == pytest.approx(kl)
    streams = made(advantages=still, behaviour_logprobs=NOW)
    same = agree("rl", lambda now, point: 0.0, streams, train)
    assert float(same.stats["mismatch_kl"]) == 0.0
    told = settled({f"rl/{name}": float(one) / 7 for name, one in same.stats.items()})
    assert told["rl/effective_sample_size"] == 1.0
    assert told["rl/clipped_positive"] is None, "there are no tokens of that sign"

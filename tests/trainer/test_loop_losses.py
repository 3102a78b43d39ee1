"""Every loss through the loop: it learns what it should, and the step tells what it measured."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel.train_section import TrainSection
from trainer.feed import Epochs
from trainer.loop import train
from trainer.metrics import StepMetrics, read
from trainer.samples import Sample
from trainer.weights import Weights


def sampled(sample_of: Any, component: str) -> list[Sample]:
    """Pairs of a good and a bad answer to one prompt, with what an engine would have said."""
    made = []
    for pair in range(3):
        for sign in (1.0, -1.0):
            answer = [30 + pair, 31 + pair, 32 + pair] if sign > 0 else [60 + pair, 61 + pair]
            size = 4 + len(answer)
            one = sample_of(
                f"{pair}{sign}", [1, 2, 3, 10 + pair], answer,
                advantages=(sign,) * size, behaviour_logprobs=(-2.0,) * size,
                teacher_logprobs=(-1.0,) * size, pair_id=f"pair-{pair}",
            )  # fmt: skip
            weights = {component: one.weights["ce"], "ref_kl": (0.1,) * size}
            made.append(msgspec.structs.replace(one, weights=weights))
    return made


def trained(model: Any, samples: list[Sample], folder: Path, **rl: Any) -> list[StepMetrics]:
    settings = TrainSection.model_validate(
        {"epochs": 4, "batch": 6, "warmup_steps": 0, "learning_rate": 3e-3, "rl": rl}
    )
    feed = Epochs(samples, settings)
    train(Weights(model), feed, settings, folder, job="j", activation_bytes=1 << 30)
    return read(folder / "metrics.jsonl")


@pytest.mark.parametrize(
    "rl",
    [
        {"loss": "dppo"},
        {"loss": "gspo", "correction": "sequence_mask", "correction_low": 0.0,
         "correction_high": 1e9, "clip_low": 1.0, "clip_high": 1e9},
        {"loss": "cispo", "old_logprobs": "recomputed", "correction": "tis"},
    ],
    ids=lambda rl: rl["loss"],
)  # fmt: skip
def test_a_policy_loss_says_what_it_did(
    model: Any, sample_of: Any, tmp_path: Path, rl: dict[str, Any]
) -> None:
    lines = trained(model, sampled(sample_of, "rl"), tmp_path, **rl)
    told = lines[-1].measured
    assert {
        "loss/rl", "loss/ref_kl", "rl/entropy", "rl/mismatch_kl", "rl/effective_sample_size",
        "rl/clipped_positive", "rl/clipped_negative", "rl/masked_positive", "rl/masked_negative",
        "ref_kl/kl", "flops_share", "memory_mib",
    } <= set(told)  # fmt: skip
    assert told["loss/rl"] and told["loss/ref_kl"]
    assert lines[-1].loss == pytest.approx(told["loss/rl"] + told["loss/ref_kl"])
    assert lines[0].measured["ref_kl/kl"] == pytest.approx(0.0, abs=1e-9), "it starts at its start"
    assert 0 < (told["rl/effective_sample_size"] or 0) <= 1
    assert (told["rl/positive"] or 0) + (told["rl/negative"] or 0) == pytest.approx(1.0)


@pytest.mark.parametrize("component", ["dpo", "kto", "distill"])
def test_preferences_and_teachers_are_followed(
    model: Any, sample_of: Any, tmp_path: Path, component: str
) -> None:
    lines = trained(model, sampled(sample_of, component), tmp_path)
    first, last = lines[0].measured, lines[-1].measured
    if component == "dpo":
        assert first["dpo/margin"] == pytest.approx(0.0, abs=1e-9)
        assert (last["dpo/margin"] or 0) > 0 and last["dpo/accuracy"] == 1.0
    elif component == "kto":
        desirable, undesirable = last["kto/reward_desirable"], last["kto/reward_undesirable"]
        assert desirable is not None and undesirable is not None and desirable > undesirable
        assert first["kto/desirable"] == 0.5
    else:
        before, after = first["distill/reverse_kl_k3"], last["distill/reverse_kl_k3"]
        assert before is not None and after is not None and after < before

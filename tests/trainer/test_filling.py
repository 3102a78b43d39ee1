from typing import Any

import msgspec
import pytest
import torch

from flywheel.train_section import RLSection, TrainSection
from trainer.filling import fill, fill_proximal
from trainer.forward import trained_logprobs
from trainer.losses import count_units, needs, reduce
from trainer.packing import lay_out
from trainer.samples import Sample
from trainer.weights import Weights

RL = TrainSection(
    micro_tokens=64,
    rl=RLSection(old_logprobs="recomputed", max_staleness=0, loss="grpo", kl=0.1),
)


def rolled(sample: Sample, **weights: float) -> Sample:
    """The sample as a rollout that weighs in these components."""
    return msgspec.structs.replace(
        sample,
        weights={
            name: tuple(weight if on else 0.0 for on in sample.mask)
            for name, weight in weights.items()
        },
        behaviour_logprobs=tuple(-0.5 if on else 0.0 for on in sample.mask),
        advantages=tuple(1.0 if on else 0.0 for on in sample.mask),
    )


def alone(model: Any, sample: Sample) -> list[float]:
    with torch.no_grad():
        return [float(one) for one in trained_logprobs(model, lay_out([sample]))]


def trained(sample: Sample, values: tuple[float, ...] | None) -> list[float]:
    assert values is not None
    return [values[at] for at in sample.targets]


def test_reference_logprobs_are_those_of_the_weights_at_the_start(
    model: Any, samples: list[Sample]
) -> None:
    weights = Weights(model)
    rollouts = [rolled(each, rl=1.0, ref_kl=1.0) for each in samples]
    before = [alone(model, each) for each in rollouts]
    with torch.no_grad():
        for parameter in weights.learning.values():
            parameter.mul_(1.5)
    filled = fill(weights, rollouts, RL)
    for sample, expected in zip(filled, before, strict=True):
        assert trained(sample, sample.reference_logprobs) == pytest.approx(expected, abs=1e-5)
        assert alone(model, sample) != pytest.approx(expected, abs=1e-5)


def test_what_is_there_or_not_needed_is_left_alone(model: Any, samples: list[Sample]) -> None:
    known = tuple(-9.0 for _ in samples[1].token_ids)
    given = msgspec.structs.replace(rolled(samples[1], ref_kl=1.0), reference_logprobs=known)
    supervised, kept = fill(Weights(model), [samples[0], given], RL)
    assert supervised is samples[0]
    assert kept.reference_logprobs == known


def test_proximal_logprobs_are_those_of_the_step_itself(model: Any, samples: list[Sample]) -> None:
    packed = lay_out([rolled(each, rl=1.0) for each in samples[:3]])
    logprobs = trained_logprobs(model, packed)
    with_them = fill_proximal(packed, logprobs, RL)
    assert not any(needs(sample, RL) for sample in with_them.samples)
    for sample in with_them.samples:
        assert trained(sample, sample.proximal_logprobs) == pytest.approx(
            alone(model, sample), abs=1e-5
        )
    reduced = reduce(with_them, logprobs, count_units(with_them.samples, RL), RL)
    assert float(reduced.shares["rl"].detach()) == pytest.approx(-1.0)  # all ratios are 1


def test_behaviour_logprobs_ask_for_no_proximal_ones(model: Any, samples: list[Sample]) -> None:
    packed = lay_out([rolled(samples[0], rl=1.0)])
    assert fill_proximal(packed, trained_logprobs(model, packed), TrainSection()) is packed

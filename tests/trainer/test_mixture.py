"""Several environments in one run, each with an algorithm of its own."""

import msgspec
import pytest

from flywheel.errors import UsageError
from flywheel.train_section import TrainSection
from tests.trainer.playing import group, played, rewarded
from trainer.algorithms.contract import Context, Group
from trainer.algorithms.mixture import mixed, online
from trainer.render import Rendering


def made(rendering: Rendering, environment: str, rewards: tuple[float, float]) -> Group:
    finished = [played(f"{environment}{k}", [((1, 40), (50 + k, 2))], rendering) for k in range(2)]
    grades = [rewarded(f"{environment}{k}", value) for k, value in enumerate(rewards)]
    return msgspec.structs.replace(group(finished, grades, id=environment), environment=environment)


def test_each_environment_is_trained_by_its_own_algorithm(rendering: Rendering) -> None:
    context = Context(
        rendering,
        TrainSection(algorithm="grpo"),
        lambda pairs: [[-0.5] * len(completion) for _, completion in pairs],
    )
    groups = [
        made(rendering, "sorting", (1.0, 0.0)),
        made(rendering, "chat", (1.0, 1.0)),
        made(rendering, "adding", (1.0, 1.0)),
    ]
    prepared = mixed(groups, context, {"chat": "distill"})
    assert [(one.group_id, *one.weights) for one in prepared.samples] == [
        ("sorting", "rl"), ("sorting", "rl"), ("chat", "distill"), ("chat", "distill"),
    ]  # fmt: skip
    assert prepared.counts == {"zero_advantage_groups": 1}


def test_an_algorithm_that_does_not_sample_is_refused() -> None:
    for name in ("sft", "dpo", "nonsense"):
        with pytest.raises(UsageError, match="distill, echo, grpo, self_distill"):
            online(name)

"""[train]: settings that would train something else than they say are refused, with the reason."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flywheel.errors import ProjectError
from flywheel.project import load_project
from flywheel.train_section import ONLINE, POLICY, TrainSection
from trainer.algorithms import ALGORITHMS


def refused(algorithm: str = "grpo", **more: Any) -> str:
    with pytest.raises(ValidationError) as error:
        TrainSection.model_validate({"algorithm": algorithm, **more})
    return str(error.value)


def taken(algorithm: str = "grpo", **more: Any) -> TrainSection:
    return TrainSection.model_validate({"algorithm": algorithm, **more})


def test_the_table_of_algorithms_and_the_settings_agree() -> None:
    assert {name for name, one in ALGORITHMS.items() if one.online} == ONLINE
    assert ALGORITHMS.keys() >= POLICY


@pytest.mark.parametrize("algorithm", ["grpo", "echo", "recorded"])
def test_a_loss_without_ratios_needs_a_correction_where_older_weights_sampled(
    algorithm: str,
) -> None:
    assert "has no ratio to who sampled" in refused(algorithm, rl={"loss": "reinforce"})
    taken(algorithm, rl={"loss": "reinforce", "correction": "tis"})
    taken("rejection", rl={"loss": "reinforce"})


def test_recomputed_logprobs_alone_are_for_synchronous_runs_and_what_is_recorded_is_none() -> None:
    own = {"old_logprobs": "recomputed"}
    assert "asynchronous" in refused(rl=own)
    taken(rl=own | {"max_staleness": 0})
    taken(rl=own | {"correction": "icepop"})
    for loss in ("dppo", "reinforce"):
        recorded = {"max_staleness": 0, "loss": loss}
        said = refused("recorded", rl=recorded | own)
        assert "hide how far" in said and "max_staleness = 0" not in said
    taken(rl={"loss": "reinforce", "max_staleness": 0})
    assert "no ratio" in refused("recorded", rl={"loss": "reinforce", "max_staleness": 0})


def test_an_environment_of_the_mixture_is_asked_as_the_run_is() -> None:
    mixture = [{"environment": {"path": "e.py:E"}, "algorithm": "grpo"}]
    said = refused("distill", mixture=mixture, rl={"loss": "reinforce"})
    assert "no ratio" in said


def test_an_answer_alone_is_no_group() -> None:
    assert "it takes two" in refused(rl={"group_size": 1})
    taken("distill", rl={"group_size": 1})


@pytest.mark.parametrize(
    "bounds", [{"correction_low": 1.5}, {"correction_high": 0.5}], ids=lambda one: next(iter(one))
)
def test_a_correction_lets_through_what_does_not_differ(bounds: dict[str, float]) -> None:
    assert next(iter(bounds)) in refused(rl={"correction": "icepop", **bounds})
    assert "there is none" in refused(rl={"correction_high": 3.0})


def test_what_only_runs_that_sample_read_is_refused_of_others() -> None:
    mixture = [{"environment": {"path": "e.py:E"}}]
    assert "would do nothing" in refused("sft", mixture=mixture)
    assert "would do nothing" in refused("dpo", curriculum={})
    assert "no pass rate" in refused(curriculum={"low": 0.8, "high": 0.2})
    taken(mixture=mixture, curriculum={})


def test_a_reason_of_ours_is_told_in_our_words_alone(tmp_path: Path) -> None:
    (tmp_path / "flywheel.toml").write_text(
        'name = "x"\n[model]\nbase = "b"\n[environment]\npath = "e.py:E"\n'
        '[train]\nalgorithm = "sft"\ncurriculum.low = 0.1\n'
    )
    with pytest.raises(ProjectError, match=r"\n  train.algorithm sft learns from") as error:
        load_project(tmp_path)
    assert "Value error" not in str(error.value)

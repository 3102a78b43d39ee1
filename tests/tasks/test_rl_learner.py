"""What a run that samples keeps, says and leaves out."""

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from flywheel.errors import FlywheelError, MissingPart, Refused
from flywheel.home import Home
from tasks.rl_buffer import Answered, Buffer, Buffered
from tasks.rl_learner import SpoolLearner, masked, nothing
from tasks.rl_report import learnt
from tasks.rl_trainer import fault_of
from trainer.samples import Sample


def sample(*versions: int | None) -> Sample:
    """A prompt token, then one token by each of the versions; None = nobody's."""
    names = tuple(None if one is None else f"run-v{one}" for one in versions)
    mask = (False, *(name is not None for name in names))
    return Sample(
        row_id="one",
        token_ids=(1,) * len(mask),
        mask=mask,
        weights={"rl": tuple(float(kept) for kept in mask)},
        template_digest="t",
        policy_versions=(None, *names),
    )


def group(visit: str, number: int, **more: Any) -> Buffered:
    answers = tuple(
        Answered(trace_id=f"{visit}-{k}", reward=float(k), tokens=3, versions=(2,)) for k in (0, 1)
    )
    return Buffered(
        visit=visit, number=number, environment="sorting", problem_id=visit,
        **{"slice": "all", "rollouts": answers, "samples": (sample(2),), **more},
    )  # fmt: skip


def test_tokens_of_versions_that_are_too_old_are_masked_and_a_sample_of_nothing_else_goes() -> None:
    from serving.policies import version_of

    kept = masked(sample(3, None, 5), 4, version_of)
    assert kept is not None and kept.mask == (False, False, False, True)
    assert masked(sample(3), 4, version_of) is None
    assert masked(sample(3), 0, version_of) == sample(3)
    (left,) = nothing([group("a", 0)])
    assert 0 < max(left.weights["rl"]) < 1e-9 and left.token_ids == sample(2).token_ids


def test_a_run_stands_where_its_files_say(tmp_path: Path) -> None:
    buffer = Buffer(tmp_path)
    for number, name in enumerate(("a", "b", "c", "d")):
        buffer.keep(group(name, number, refused="even" if name == "d" else None))
    buffer.assign(1, ("a",))
    buffer.assign(2, ("b",))
    (tmp_path / "versions" / "v000001").mkdir(parents=True)
    none = cast(Any, None)
    learner = SpoolLearner(Home(tmp_path / "home"), tmp_path, {}, none, none)
    standing = asyncio.run(learner.standing())
    assert (standing.trained, standing.pending) == (1, ("b",))
    assert [one.visit for one in standing.kept] == ["c"]
    assert standing.consumed == {"a", "b", "c", "d"}
    buffer.trained("a")
    trained = buffer.find("a")
    assert trained is not None and not trained.samples and trained.rollouts


def test_people_are_told_of_rewards_since_the_last_step_and_what_it_said(tmp_path: Path) -> None:
    none = cast(Any, None)
    learner = SpoolLearner(Home(tmp_path / "home"), tmp_path, {}, none, none)
    assert learner.words() == ""
    learner._since.append(group("a", 0))
    assert learner.words() == "mean reward 0.500"
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.25, "reward": 0.5}\n')
    learner._since, learner._last = [], learner._said(1)
    assert learner.words() == "step 1: loss 0.2500, reward 0.500"
    assert learner._said(2) == ""


def test_a_report_is_of_all_that_ended_and_knows_what_it_does_not_know() -> None:
    even = group("e", 1, slice="hard", counts={"zero_advantage_groups": 1}, refused="even")
    lost = msgspec.structs.replace(
        group("l", 2), rollouts=(Answered(trace_id="l", reward=None, cut=True),), lost=1
    )
    told = learnt([group("a", 0)], [group("a", 0), even, lost])
    assert told["reward"] == pytest.approx(0.5) and told["reward/hard"] == 0.5
    assert told["truncated_share"] == told["ungraded_share"] == pytest.approx(1 / 5)
    assert (told["zero_advantage_groups"], told["rollouts_lost"]) == (1.0, 1.0)
    assert learnt([lost], [])["reward"] is None


def test_a_trainer_that_refuses_is_not_asked_again() -> None:
    assert [fault_of(code) for code in (1, 2, 3)] == [FlywheelError, MissingPart, Refused]

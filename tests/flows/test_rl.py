"""Turns that sample while they train, on the tiny model: a process that trains beside one that
plays."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flywheel.home import Home
from flywheel.lineage import Deployment
from tests.flows.test_turn import deliver

pytestmark = pytest.mark.slow

ASYNCHRONOUS = """
algorithm = "grpo"
schedule = "constant"
checkpoint_every = 4
[train.rl]
steps = 16
groups_per_step = 8
group_size = 8
max_staleness = 8
slots = 32
temperature = 1.0
"""


def with_rl(folder: Path, settings: str = ASYNCHRONOUS) -> None:
    file = folder / "flywheel.toml"
    before, train, after = file.read_text().partition("[gate]")
    file.write_text(before + settings.lstrip() + "\n" + train + after)


def test_the_wheel_turns_once_with_asynchronous_grpo(
    prefect_server: str, home: Home, project_folder: Path, traffic: ModuleType
) -> None:
    from flows.turn import turn
    from storage.lineage import lineage
    from storage.queries import records, traces

    with_rl(project_folder)
    deliver(home, traffic, 160)
    report: Any = turn(str(project_folder))
    assert report["decision"] == "promoted", report["reason"]
    assert report["run"]["algorithm"] == "grpo"
    evaluation = report["evaluation"]
    assert evaluation["low"] > 0 and evaluation["candidate"] > evaluation["champion"] + 0.15

    metrics = (home.runs / report["run"]["id"] / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in metrics]
    assert [one["step"] for one in steps] == list(range(1, 17))
    assert 0 < max(one["staleness_max"] for one in steps) <= 8, "asynchronous, and within the bound"

    problems, trained = records(home, "dataset")
    assert (problems.id, trained.parents) == (report["dataset"]["id"], (problems.id,))
    chain = {link.id for link in lineage(home, report["deployment"]) if link.kind == "trace"}
    learnt = [one for batch in traces(home, ids=chain) for one in batch]
    assert sum(one.origin == "rollout" for one in learnt) >= 16 * 8 * 8 - 8


def test_a_project_that_fails_before_its_training_leaves_the_others_alone(
    prefect_server: str, home: Home, tmp_path: Path
) -> None:
    from tasks.together import curate_datasets, train_candidates
    from tasks.turns import Turn

    start = Deployment(name="gone-v0", project="gone", version=0, base_model="base")
    gone = Turn(
        run_id="0" * 32, project="gone", folder=str(tmp_path / "gone"), start=start,
        configuration="c", sequence=0, snapshot="s",
    )  # fmt: skip
    given = [*curate_datasets([gone]), {"passed": False, "reason": "too few rows"}]
    first, second = train_candidates([gone, gone], given)
    assert "gone" in first["failed"] and second["refused"] == "too few rows"

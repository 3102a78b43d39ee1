"""Recipes that sample, from the project's file to trained weights, on the tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest

from flywheel.home import Home
from tests.tasks.sampling import prepared, write_project

TRAIN = """
algorithm = "self_distill"
schedule = "constant"
warmup_steps = 0
[train.teacher]
hint = "The answer: {answer}"
[train.curriculum]
low = 0.1
high = 0.9
[train.rl]
steps = 4
groups_per_step = 2
group_size = 4
max_staleness = 0
slots = 8
"""


@pytest.fixture
def home(sampling_home: Home) -> Home:
    return sampling_home


@pytest.mark.slow
def test_self_distillation_trains_on_what_the_hinted_model_says(home: Home, tmp_path: Path) -> None:
    from tasks.rl import train_online

    project = write_project(tmp_path / "hinted", "hinted", TRAIN)
    train_online(prepared(home, project, "hinted", count=8))
    folder = home.runs / "hinted"
    assert json.loads((folder / "result.json").read_bytes())["steps"] == 4
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    first: dict[str, Any] = json.loads(lines[0])
    assert first["distill/reverse_kl"] > 0.01, "the hint tells the model something"
    assert first["distill/mismatch_kl"] < 1e-4, "student and trainer are one model"
    assert (folder / "source.jsonl").read_text().count('"visit":"') >= 8, "what visits were worth"

"""Turns that sample while they train, on the tiny model: a process that trains beside one that
plays."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flywheel.home import Home
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

    with_rl(project_folder)
    deliver(home, traffic, 160)
    report: Any = turn(str(project_folder))
    print(report)
    assert report["decision"] == "promoted", report["reason"]
    assert report["run"]["algorithm"] == "grpo"

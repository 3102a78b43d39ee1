"""A turn that is killed anywhere ends, when it is run again, where an unbroken one ends."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flywheel.home import Home
from flywheel.project import load_project
from flywheel.settings import Settings
from serving.engines.client import EngineClient

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
FAILPOINTS = (
    "store.before_commit",
    "turn.before_rollouts_commit",
    "turn.after_chunk",
    "dataset.before_publish",
    "train.after_step",
    "train.after_checkpoint",
    "turn.after_training",
    "turn.mid_evaluation",
    "promotion.after_intent",
    "promotion.after_check",
    "promotion.after_routing",
    "promotion.after_alias",
)
"""In the order in which a turn comes by them."""


class Forker:
    """The process that forks turns (forker.py), and the engine that answers all of them."""

    def __init__(self, process: "subprocess.Popen[str]", engine: EngineClient) -> None:
        self.process, self.engine = process, engine

    def turn(self, home: Home, project: Path, **how: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        order = {"home": str(home.root), "project": str(project), **how}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def fresh(self, start: Home, root: Path) -> Home:
        """A copy of the starting home; the shared engine answers for it, with no adapter loaded."""
        for name in self.engine.models():
            if name != "base":
                self.engine.unload_adapter(name)
        shutil.copytree(start.root, root)
        return Home(root)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kills") / "sorting"
    shutil.copytree(ROOT / "tests" / "sorting", folder)
    file = folder / "flywheel.toml"
    text = file.read_text().replace("epochs = 3", "epochs = 3\ncheckpoint_every = 2")
    text += "\n[problems]\nmax_train = 48\nmax_heldout = 40\n"
    file.write_text(text)
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, traffic: ModuleType) -> Home:
    """A home with traffic and feedback in its inbox."""
    from storage.inbox import Inbox

    home = Home(tmp_path_factory.mktemp("start") / "home")
    home.root.mkdir()
    asks = traffic.asks(130)
    Inbox(home).append(traffic.recorded("sorting", asks, "sorting-v0"))
    Inbox(home).append(traffic.feedback("sorting", asks))
    return home


@pytest.fixture(scope="module")
def forker(prefect_server: str, project: Path, start: Home) -> Iterator[Forker]:
    from serving.server import ensure

    environment = {**os.environ, "PREFECT_API_URL": prefect_server, "OMP_NUM_THREADS": "1"}
    with (
        ensure(start, load_project(project), Settings(threads=1)) as server,
        subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "forker.py"), str(start.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        ) as process,
    ):
        assert process.stdout
        assert json.loads(process.stdout.readline())["ready"]
        yield Forker(process, EngineClient(server.engine_url))
        process.kill()


@pytest.fixture(scope="module")
def unbroken(
    forker: Forker, start: Home, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    home = forker.fresh(start, tmp_path_factory.mktemp("unbroken") / "home")
    told = forker.turn(home, project)
    assert told["report"], told["error"]
    return {"report": told["report"], "state": state_of(home)}


def state_of(home: Home) -> dict[str, Any]:
    """All that must come out the same: what was made, how often, and what serves."""
    from serving.routing import read
    from storage.queries import counts, records, traces

    rollouts = [one for batch in traces(home, origin=("rollout", "evaluation")) for one in batch]
    route = read(home).projects.get("sorting")
    return {
        "rollouts": sorted((one.id, repr(one.spans[0].call.choices)) for one in rollouts),
        "datasets": sorted(one.id for one in records(home, "dataset")),
        "runs": sorted(one.id for one in records(home, "run")),
        "checkpoints": sorted(one.id for one in records(home, "checkpoint")),
        "evaluations": sorted(one.id for one in records(home, "evaluation")),
        "decisions": sorted((one.gate, one.outcome) for one in records(home, "decision")),
        "grades": counts(home, "sorting")["grades"],
        "champion": route.champion.name if route else None,
    }  # fmt: skip


def test_a_turn_killed_at_each_failpoint_in_a_row_ends_like_an_unbroken_one(
    forker: Forker, start: Home, project: Path, unbroken: Any, tmp_path: Path
) -> None:
    home = forker.fresh(start, tmp_path / "home")
    for failpoint in FAILPOINTS:
        killed = forker.turn(home, project, failpoint=failpoint)
        assert killed["status"] == -9, f"{failpoint} was never reached: {killed}"
    told = forker.turn(home, project)
    assert told["report"], told["error"]
    assert state_of(home) == unbroken["state"]
    assert told["report"]["dataset"] == unbroken["report"]["dataset"]


@pytest.mark.soak
def test_a_turn_killed_three_times_at_random_ends_like_an_unbroken_one(
    forker: Forker, start: Home, project: Path, unbroken: Any, tmp_path: Path
) -> None:
    home = forker.fresh(start, tmp_path / "home")
    draw = random.Random(os.urandom(8))
    delays = [draw.uniform(0.5, 8.0) for _ in range(3)]
    for delay in delays:
        forker.turn(home, project, kill_after=delay)
    told = forker.turn(home, project)
    assert told["report"], (delays, told["error"])
    assert state_of(home) == unbroken["state"], delays

"""Runs that are played before several engines."""

import json
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from flywheel import children
from flywheel.home import Home
from serving.engines.client import EngineClient
from tests.tasks.sampling import prepared, write_project

pytestmark = pytest.mark.slow
SORTING = Path(__file__).resolve().parents[1] / "sorting"
TRAIN = """
algorithm = "grpo"
schedule = "constant"
[train.rl]
steps = 4
groups_per_step = 2
group_size = 4
max_staleness = 4
slots = 16
engines = ["http://127.0.0.1:9", "{url}/v1"]
"""


@pytest.fixture
def home(sampling_home: Home) -> Home:
    return sampling_home


def test_an_engine_that_is_killed_leaves_its_rollouts_to_the_others(
    home: Home, tmp_path: Path
) -> None:
    from tasks.rl import train_online
    from tasks.rl_buffer import Buffer
    from tasks.turns import engine

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = ["--model", str(SORTING / "base"), "--port", str(port), "--threads", "1"]
    other = children.start("serving.engines.embedded", given, log=tmp_path / "other.log")
    try:
        with EngineClient(f"http://127.0.0.1:{port}") as client:
            client.wait_ready()
            project = write_project(tmp_path / "two", "two", TRAIN.format(url=client.url))
            run = prepared(home, project, "two")
            killing = threading.Thread(target=kill_as_it_plays, args=(client, other))
            killing.start()
            train_online(run)
            killing.join()
    finally:
        other.kill()
        other.wait()
        assert other.stdin is not None
        other.stdin.close()
    assert json.loads((run.folder / "result.json").read_bytes())["steps"] == 4
    buffer = Buffer(run.folder)
    taken = [name for step in buffer.assigned().values() for name in step]
    groups = {one.visit: one for one in buffer.all()}
    assert len(taken) == len(set(taken)) == 8
    assert all(len(groups[name].rollouts) == 4 for name in taken), "none of them is lost"
    with engine() as home_engine:
        assert not [name for name in home_engine.models() if name.startswith(run.name)]


def kill_as_it_plays(client: EngineClient, engine: subprocess.Popen[bytes]) -> None:
    """Once it answers with a version that was published."""
    while not any("-v1-" in name for name in client.models()):
        time.sleep(0.02)
    while (load := client.load()) is None or not load.running:
        time.sleep(0.005)
    engine.kill()

"""A turn that trains all weights, on the tiny model: tried, promoted, served, taken back, found
again; and what is refused before anything is sampled."""

from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from flywheel.errors import Refused
from flywheel.home import Home
from flywheel.lineage import Checkpoint, Deployment
from flywheel.project import load_project
from flywheel.settings import Settings
from tests.flows.test_turn import deliver, send

pytestmark = pytest.mark.slow


def with_all_weights(folder: Path) -> None:
    file = folder / "flywheel.toml"
    text = file.read_text().replace("learning_rate = 2e-3", 'method = "full"\nlearning_rate = 2e-4')
    file.write_text(text)


@pytest.mark.soak
def test_a_whole_model_is_promoted_answers_survives_a_start_and_goes_back(
    prefect_server: str, home: Home, project_folder: Path, traffic: ModuleType
) -> None:
    """Its parts are seen first: training and saving in tests/trainer/test_weights.py, sampling from
    each version in tests/tasks/test_rl.py, serving beside others in
    tests/serving/engines/test_whole_models.py, where a run starts in tests/tasks/test_starting.py,
    promotion and rollback in test_turn.py."""
    from flows.turn import turn
    from serving.engines.client import EngineClient
    from serving.promotion import rollback
    from serving.registry import Registry
    from serving.registry_versions import deployment_of, version_of
    from serving.routing import read
    from serving.server import ensure
    from storage.queries import records
    from tasks.starting import start_of, trainable

    with_all_weights(project_folder)
    project, registry = load_project(project_folder), Registry(home)
    deliver(home, traffic, 160)
    report: Any = turn(str(project_folder))
    assert report["decision"] == "promoted", report["reason"]
    assert report["evaluation"]["candidate"] > report["evaluation"]["champion"] + 0.15

    champion = read(home).projects["sorting"].champion
    assert (champion.name, champion.kind) == ("sorting-v1", "full")
    (checkpoint,) = records(home, "checkpoint")
    assert isinstance(checkpoint, Checkpoint) and checkpoint.kind == "full"
    assert home.path(checkpoint.path) == home.path(champion.adapter or "") == start_of(champion)[0]
    version = version_of(registry, "sorting", "1")
    assert deployment_of(registry, version, champion.base_model) == champion

    with ensure(home, project, Settings()) as server:  # another start than the turn's
        answer = send(server.url, "sorting", traffic.asks(1, seed=9))[0]
        assert answer["model"] == "sorting-v1"
        with EngineClient(server.engine_url) as engine:
            assert {"base", "sorting-v1"} <= set(engine.models())
            back = rollback(
                home, "sorting", engine=engine, registry=registry, by="ada", reason="too long"
            )
            assert back.name == "sorting-v0"
        assert send(server.url, "sorting", traffic.asks(1, seed=8))[0]["model"] == "sorting-v0"

    home.path(champion.adapter or "").rename(home.root / "lost")
    fetched = deployment_of(registry, version, champion.base_model)
    assert fetched.kind == "full" and (home.path(fetched.adapter or "") / "config.json").is_file()
    adapters = project.model_copy(
        update={"train": project.train.model_copy(update={"method": "lora"})}
    )
    with pytest.raises(Refused, match="sorting-v1 is a whole model"):
        trainable(adapters, champion)
    assert msgspec.json.decode(msgspec.json.encode(champion), type=Deployment) == champion

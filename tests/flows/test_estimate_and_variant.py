"""A promoted home looks at its version again, and makes it faster: one server for all tests."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.home import Home
from flywheel.project import load_project
from flywheel.settings import Settings
from tests.promoted import load_traffic, promoted_home

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lived(
    prefect_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Home, Path]]:
    """A home whose version 1 was promoted, with newer traffic of the version before; its server."""
    from serving.server import ensure
    from storage.inbox import Inbox

    made, folder = promoted_home(tmp_path_factory), tmp_path_factory.mktemp("looked")
    shutil.copytree(made.home, folder / "home", symlinks=True)
    shutil.copytree(made.project, folder / "sorting")
    file = folder / "sorting" / "flywheel.toml"
    file.write_text(file.read_text() + "\n[problems]\nmax_heldout = 24\n")
    place = pytest.MonkeyPatch()
    place.setenv("FLYWHEEL_HOME", str(folder / "home"))
    place.setenv("FLYWHEEL_THREADS", "1")
    home, traffic = Settings().at(), load_traffic()
    asks = traffic.asks(220)[160:]
    Inbox(home).append(traffic.recorded("sorting", asks, "sorting-v0"))
    Inbox(home).append(traffic.feedback("sorting", asks))
    with ensure(home, load_project(folder / "sorting"), Settings()):
        yield home, folder / "sorting"
    place.undo()


def test_a_version_is_estimated_on_what_it_was_not_trained_on(lived: tuple[Home, Path]) -> None:
    from flows.estimate import estimate
    from serving.routing import read
    from storage.queries import records, traces

    home, folder = lived
    found: Any = estimate(str(folder), "1", 60, "tests")
    assert (found["candidate"], found["champion"]) == ("sorting-v1", "sorting-v0")
    assert found["verdict"] == "better" and found["replay"]["overall"]["low"] > 0
    assert found["replay"]["compared"] >= 40
    assert found["replay"]["looked_at"]["looked_at"] >= found["replay"]["asked"]
    assert found["logged"]["verdict"] == "cannot tell"
    assert home.path(found["plot"]).stat().st_size > 5_000
    (said,) = [one for one in records(home, "decision") if one.gate == "estimate"]
    assert (said.outcome, said.by, said.deployment) == ("passed", "tests", None)
    assert said.evidence["candidate"] == "sorting-v1"
    (answers,) = traces(home, run_id=found["run_id"], origin="evaluation")
    assert len(answers) == found["replay"]["asked"]
    assert read(home).projects["sorting"].champion.name == "sorting-v1"


def test_a_variant_is_held_against_what_serves_in_reward_and_in_seconds_a_token(
    lived: tuple[Home, Path],
) -> None:
    from flows.variant import variant
    from serving.registry import Registry
    from serving.registry_versions import deployment_of, version_of
    from tasks.starting import start_of

    home, folder = lived
    # How fast this machine is just now is no news of the variant: the gate may say either.
    found: Any = variant(str(folder), None, "ngram", "tests", promote=False, return_state=True)
    report = found.result()
    assert report["candidate"] == "sorting-v2" and report["of"] == "sorting-v1"
    assert report["evaluation"]["difference"] == 0.0, "it gives the very same answers"
    assert report["speed"]["prompts"] > 2 and report["speed"]["candidate_s_token"] > 0
    assert report["decision"] in ("passed", "refused") and report["deployment"] == "sorting-v1"
    registry = Registry(home)
    made = deployment_of(registry, version_of(registry, "sorting", "2"), "base")
    assert made.variant["how"] == "ngram" and made.adapter is not None
    said = json.loads((home.path(made.adapter) / "speculative.json").read_text())
    assert said["method"] == "ngram"
    assert start_of(made).adapter == home.path(made.variant["of"]["adapter"])

"""`flywheel mlflow` on a promoted home: MLflow's real pages over HTTP, and what stays of them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.calling import FLYWHEEL, call, surroundings
from tests.app.conftest import Promoted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(promoted: Promoted) -> Iterator[tuple[Any, str]]:
    """The command's process, and the URL that it printed, with each project's page."""
    assert promoted.turned.code == 0, promoted.turned
    with subprocess.Popen(
        [*FLYWHEEL, "mlflow", "--port", "0", "--json"],
        env=surroundings(promoted.home),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout
        said = json.loads(process.stdout.readline())
        ((project, page),) = said["experiments"].items()
        assert project == "sorting" and page.startswith(f"{said['url']}/#/experiments/")
        yield process, said["url"]
        process.kill()


@pytest.fixture
def client(pages: tuple[Any, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=pages[1], trust_env=False, timeout=30) as asking:
        yield asking


def found(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(f"/api/2.0/mlflow/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def the_turn(client: httpx.Client) -> Any:
    experiments = found(client, "experiments/search", max_results=10)["experiments"]
    (ours,) = [one["experiment_id"] for one in experiments if one["name"] == "sorting"]
    (run,) = found(client, "runs/search", experiment_ids=[ours])["runs"]
    return run


def test_the_pages_show_the_homes_runs_with_plots_and_the_gates_report(
    client: httpx.Client,
) -> None:
    assert "text/html" in client.get("/").headers["content-type"]
    run = the_turn(client)
    assert {one["tags"][0]["value"] for one in run["inputs"]["dataset_inputs"]} == {
        "training", "evaluation",
    }  # fmt: skip
    kinds = {
        "plots/training.png": "image/png", "plots/heldout.png": "image/png",
        "dataset/gate.html": "text/html", "evaluation/pairs.json": "text/plain",
    }  # fmt: skip
    for path, kind in kinds.items():
        artifact = client.get(
            "/get-artifact", params={"path": path, "run_uuid": run["info"]["run_id"]}
        )
        assert artifact.status_code == 200 and kind in artifact.headers["content-type"]
    model = client.get("/api/2.0/mlflow/registered-models/get", params={"name": "sorting"})
    assert "**sorting-v1** answers" in model.json()["registered_model"]["description"]


def test_another_pages_requests_and_hosts_are_refused(client: httpx.Client) -> None:
    assert client.get("/", headers={"host": "elsewhere.example"}).status_code == 403
    asked = client.post(
        "/api/2.0/mlflow/experiments/search",
        json={},
        headers={"origin": "http://elsewhere.example"},
    )
    assert asked.status_code == 403


def test_a_taken_port_is_said_at_once(pages: tuple[Any, str], promoted: Promoted) -> None:
    port = pages[1].rpartition(":")[2]
    said = call("mlflow", "--port", port, "--json", home=promoted.home)
    assert said.code == 1 and f"cannot listen on 127.0.0.1:{port}" in said.object()["error"]


def test_the_server_leaves_with_its_command_even_a_killed_one(pages: tuple[Any, str]) -> None:
    process, url = pages
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 60
    while Path(f"/proc/{children[0]}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{children[0]}").exists()
    with pytest.raises(httpx.HTTPError):
        httpx.get(url, trust_env=False)


def test_wrong_usage_is_told_before_anything_is_started(tmp_path: Path) -> None:
    for words, expected in (
        (("promote", "--asked", "--version", "1"), "take one"),
        (("release", "--canary", "10%"), "--version says which"),
        (("release", "--canary", "10%", "--end"), "take one"),
        (("release", "--shadow", "110%", "--version", "1"), "at most 1"),
        (("release", "--version", "1", "--canary", "much"), "write 10% or 0.1"),
    ):
        said = call(*words, "--json", home=tmp_path / "home")
        assert said.code == 2 and expected in said.object()["error"]


def test_a_tracking_address_of_another_place_is_refused(promoted: Promoted) -> None:
    said = call(
        "promote", promoted.project, "--json", home=promoted.home,
        MLFLOW_TRACKING_URI="http://mlflow.example:5000",
    )  # fmt: skip
    assert said.code == 2 and "not supported" in said.object()["error"]

"""A whole turn on the real vLLM, behind `flywheel serve --engine vllm`, and nothing left of it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import psutil
import pytest

from flywheel.home import Home
from flywheel.project import load_project
from flywheel.settings import Settings

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def serving(home: Home, project_folder: Path) -> Iterator["subprocess.Popen[str]"]:
    if not (Settings().vllm / ".installed").exists():
        if os.environ.get("FLYWHEEL_TEST_VLLM"):
            pytest.fail("no vLLM: `make install-vllm`")
        pytest.skip("no vLLM: `make install-vllm` brings it")
    command = ["serve", str(project_folder), "--engine", "vllm", "--port", "0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", *command],
        cwd=ROOT,
        env={**os.environ, "FLYWHEEL_HOME": str(home.root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def belonging_to(home: Home) -> list[psutil.Process]:
    """vLLM's processes of this home, by where they run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(home.engine)):
                found.append(process)
        except psutil.Error:
            continue
    return found


def talk(url: str, traffic: ModuleType, asks: list[Any]) -> list[dict[str, Any]]:
    answers = []
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        for ask in asks:
            said = client.post(
                "/v1/chat/completions",
                headers={"x-conversation-id": ask.conversation},
                json={
                    "model": "sorting",
                    "messages": [{"role": m.role, "content": m.text} for m in ask.messages],
                    "user": ask.user,
                },
            )
            said.raise_for_status()
            answers.append(said.json())
        for word in traffic.feedback("sorting", asks):
            body = {
                "conversation_id": word.target,
                "name": word.name,
                "kind": word.kind,
                "value": word.value,
                "by": word.by,
            }
            client.post("/v1/feedback", json=body).raise_for_status()
    return answers


def test_a_turn_on_vllm_promotes_and_a_killed_server_leaves_nothing_of_it(
    prefect_server: str,
    home: Home,
    project_folder: Path,
    traffic: ModuleType,
    serving: "subprocess.Popen[str]",
) -> None:
    from flows.turn import turn
    from serving.server import running
    from storage.queries import records, traces

    assert serving.stdout is not None
    line = serving.stdout.readline()
    assert line, "it did not start"
    url = json.loads(line)["url"]
    talk(url, traffic, traffic.asks(160))
    report = turn(str(project_folder))
    assert report["decision"] == "promoted", report["reason"]
    assert report["evaluation"]["candidate"] > report["evaluation"]["champion"] + 0.1
    answer = talk(url, traffic, traffic.asks(1, seed=9))[0]
    assert answer["model"] == report["deployment"] == "sorting-v1"

    recorded = [
        t for batch in traces(home, project="sorting", origin=("production",)) for t in batch
    ]
    assert recorded and {trace.fidelity for trace in recorded} == {"trainable"}
    (decision,) = [one for one in records(home, "decision") if one.outcome == "promoted"]
    evidence = decision.evidence["serving"]
    assert evidence["largest"] < 1e-3 and evidence["smoke"]["largest"] < 1e-3

    server = running(home)
    assert server is not None and server.access.kind == "vllm"
    assert httpx.get(f"{server.engine_url}/v1/models", trust_env=False).status_code == 401
    assert (home.server.stat().st_mode & 0o77) == 0, "its key is this user's alone"
    shared = set(Path("/dev/shm").glob("psm_*"))
    assert len(belonging_to(home)) >= 3
    serving.kill()
    deadline = time.monotonic() + 60
    while belonging_to(home):
        assert time.monotonic() < deadline, "vLLM outlived its server"
        time.sleep(0.2)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.engine_url}/health", trust_env=False)
    assert set(Path("/dev/shm").glob("psm_*")) < shared, "its shared memory is freed"
    assert load_project(project_folder).serving.engine == "embedded"

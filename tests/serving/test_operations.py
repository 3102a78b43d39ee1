"""What a platform engineer sees: metrics, logs, reload, TLS, several gateway processes."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flywheel.home import Home
from flywheel.project import load_project
from serving.gateway import Gateway
from serving.keys import Keys
from serving.limits import Limits
from serving.logs import JsonLines, RequestLog
from serving.metrics import Metrics
from serving.observing import Observers, Seen
from serving.reloading import Reloading
from serving.state import EngineState
from tests.serving.running import body
from tests.serving.test_server import TOML, Server, ask, committed, wait

ANSWERED = Seen(
    project="support",
    deployment="support-v1",
    end="answered",
    at=10**18,
    caller="app",
    first_s=0.02,
    total_s=0.2,
    input_tokens=40,
    output_tokens=8,
    refusal=False,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    try:
        yield made
    finally:
        made.end()


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """By the labels' values, in the order of their names."""
    return {
        tuple(sample.labels[key] for key in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_metrics_count_what_ended_and_observe_nothing_that_is_unknown() -> None:
    metrics = Metrics()
    metrics.hear(ANSWERED)
    metrics.hear(Seen(project="support", deployment="support-v1", end="failed", at=1, code="x"))
    metrics.engine(EngineState("ready", restarts=2))
    metrics.stand(running=3, waiting=4, lag_s=0.01, counts={"unrecorded": 2})
    text = metrics.text()
    requests = values(text, "flywheel_requests_total")
    assert requests[("", "support-v1", "chat.completions", "answered", "support")] == 1
    assert requests[("x", "support-v1", "chat.completions", "failed", "support")] == 1
    assert values(text, "flywheel_tokens_total") == {
        ("support-v1", "app", "support", "input"): 40,
        ("support-v1", "app", "support", "output"): 8,
    }
    assert values(text, "flywheel_request_seconds_count") == {("support-v1", "support"): 1}
    assert values(text, "flywheel_dropped_records") == {(): 0}
    assert values(text, "flywheel_engine_up")[("ready",)] == 1
    assert values(text, "flywheel_requests_running") == {(): 3}


def test_a_listener_that_fails_is_dropped_and_the_others_hear_on() -> None:
    observers, heard = Observers(), list[Seen]()

    def faulty(seen: Seen) -> None:
        raise ValueError(seen.project)

    observers.add(faulty)
    observers.add(heard.append)
    observers.tell(ANSWERED)
    observers.tell(ANSWERED)
    assert heard == [ANSWERED, ANSWERED]


def test_a_log_line_is_one_json_object_whatever_it_says(caplog: pytest.LogCaptureFixture) -> None:
    failed = Seen(project="p", deployment="p-v1", end="cut", at=1, code="engine_cut", trace_id="t")
    with caplog.at_level("INFO", logger="flywheel.requests"):
        RequestLog("json").hear(failed)
        RequestLog("text").hear(ANSWERED)
    (record,) = caplog.records
    record.msg += "\n two lines"
    line = JsonLines().format(record)
    assert "\n" not in line
    said = json.loads(line)
    assert said["code"] == "engine_cut" and said["trace_id"] == "t" and said["level"] == "warning"
    assert "refusal" not in said  # it is not known


def test_a_reload_takes_what_is_sound_and_names_what_needs_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flywheel.server")
    file = tmp_path / "flywheel.toml"
    file.write_text(TOML)
    reloading = Reloading([load_project(tmp_path)])
    file.write_text(TOML + "[serving]\nmax_tokens = 9\n")
    assert reloading._take() and reloading.problem is None
    file.write_text(TOML + "[serving]\nmax_tokns = 9\n")
    assert not reloading._take() and "max_tokens" in str(reloading.problem)
    file.write_text(TOML + "[serving]\nport = 9\n")
    assert reloading._take() and "[serving] port" in str(reloading.problem)
    file.write_text(TOML.replace('"support"', '"other"'))
    assert not reloading._take() and "'other'" in str(reloading.problem)
    assert "well again" not in caplog.text
    file.write_text(TOML)
    assert reloading._take() and caplog.messages[-1].endswith("all is well again")


def test_a_reload_reaches_all_parts_and_splits_among_the_processes_that_there_are(
    tmp_path: Path,
) -> None:
    gateway = Gateway(
        Home(tmp_path), frozenset({"support"}), limits=Limits(), keys=Keys(()), engine=EngineState()
    )
    (tmp_path / "flywheel.toml").write_text(
        TOML + '[serving]\nworkers = 8\nmax_concurrent = 12\nunrecorded = "serve"\n'
    )
    gateway.adopt([load_project(tmp_path)], workers=2)
    parts = (gateway, gateway.inference, gateway.admission, gateway.recording)
    assert {one.limits for one in parts} == {Limits(concurrent=6, unrecorded="serve")}


@pytest.mark.slow
def test_two_gateway_processes_share_the_port_and_one_that_is_killed_is_replaced(
    server: Server,
) -> None:
    (server.project / "flywheel.toml").write_text(TOML + "[serving]\nworkers = 2\n")
    url = server.up().url
    with ThreadPoolExecutor(8) as pool:
        assert {one.status_code for one in pool.map(lambda _: ask(url), range(60))} == {200}
    # What a killed process had not told yet, of a quarter of a second, is in no metric.
    wait(lambda: answered(url) == 60)
    children = worker_pids(server.processes[0].pid)
    assert len(children) == 2
    os.kill(children[0], signal.SIGKILL)

    def replaced() -> bool:
        health = httpx.get(f"{url}/health").json()
        return bool(health["worker_restarts"] == 1 and health["workers"] == 2)

    wait(replaced)
    assert ask(url).status_code == 200
    wait(lambda: answered(url) == 61)
    server.processes[0].terminate()
    assert server.processes[0].wait(30) == 0
    assert not worker_pids(server.processes[0].pid)
    assert len(committed(server.home)) == 61


@pytest.mark.slow
def test_gateway_processes_leave_with_a_server_that_is_killed_with_their_words_unread(
    server: Server,
) -> None:
    url = server.up().url
    process = server.processes[0]
    (worker,) = worker_pids(process.pid)
    process.send_signal(signal.SIGSTOP)
    assert ask(url).status_code == 200
    time.sleep(1.0)  # it tells what ended, and nobody reads it
    process.kill()
    process.wait()
    wait(lambda: not Path(f"/proc/{worker}").exists() or "Z" in state_of(worker))


@pytest.mark.slow
def test_a_change_of_the_file_holds_at_once_and_one_that_is_not_sound_changes_nothing(
    server: Server,
) -> None:
    url = server.up().url
    file = server.project / "flywheel.toml"

    def bound() -> int:
        return httpx.post(f"{url}/v1/chat/completions", content=body(max_tokens=100)).status_code

    assert bound() == 200
    file.write_text(TOML + "[serving]\nmax_tokens = 50\n")
    wait(lambda: bound() == 400)
    file.write_text(TOML + "[serving]\nmax_tokens = -1\n")
    wait(lambda: "max_tokens" in str(httpx.get(f"{url}/health").json()["configuration"]["problem"]))
    assert bound() == 400
    file.write_text(TOML)
    server.processes[0].send_signal(signal.SIGHUP)
    wait(lambda: bound() == 200)
    metrics = httpx.get(f"{url}/metrics").text
    assert values(metrics, "flywheel_requests_total")


@pytest.mark.slow
def test_two_projects_are_served_by_one_engine_each_under_its_name(server: Server) -> None:
    other = server.project.with_name("other")
    other.mkdir()
    (other / "flywheel.toml").write_text(TOML.replace('"support"', '"other"'))
    server.projects += f"{os.pathsep}{other}"
    record = server.up()
    assert record.projects == ("other", "support")
    for name in record.projects:
        said = httpx.post(f"{record.url}/v1/chat/completions", content=body(model=name))
        assert said.headers["x-flywheel-deployment"] == f"{name}-v0"
    assert {one["id"] for one in httpx.get(f"{record.url}/v1/models").json()["data"]} >= {
        "other",
        "support",
    }


@pytest.mark.slow
def test_tls_by_files_and_a_file_that_is_none_is_said(server: Server) -> None:
    cert, key = certificate(server.home.root.parent)
    toml = TOML + f'[serving]\ntls_cert = "{cert}"\ntls_key = "{key}"\n'
    (server.project / "flywheel.toml").write_text(toml)
    record = server.up()
    assert record.url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(cert))
    with httpx.Client(verify=trusted) as client:
        said = client.post(f"{record.url}/v1/chat/completions", content=body())
    assert said.status_code == 200
    assert httpx.get(f"{record.url}/ready", verify=record.verify()).status_code == 200
    with pytest.raises(httpx.HTTPError):
        httpx.get(record.url.replace("https", "http") + "/health")
    server.processes[0].terminate()
    server.processes[0].wait(30)
    key.write_text("nothing")
    refused = server.start()
    assert refused.wait(30) == 2
    assert b"tls_key" in (refused.stderr.read() if refused.stderr else b"")


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [sys.executable, "-m", "tests.serving.certificate", str(cert), str(key)], check=True
    )
    return cert, key


def answered(url: str) -> float:
    found = values(httpx.get(f"{url}/metrics").text, "flywheel_requests_total")
    return sum(count for labels, count in found.items() if "answered" in labels)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def worker_pids(parent: int) -> list[int]:
    """Gateway processes of a server, by their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if int(stat[1]) == parent and b"serving.worker" in line and stat[0] != "Z":
                found.append(int(folder.name))
    return found

"""The server's life: one a home, killed, restarted, drained; nothing answered is lost."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import psutil
import pytest

from flywheel.errors import Busy, FlywheelError
from flywheel.home import Home
from flywheel.project import Project, load_project
from flywheel.records import Trace
from flywheel.settings import Settings
from serving import presence, routing
from serving.keeper import Keeper
from serving.server import ensure, running, serve
from serving.state import EngineState
from storage.committer import commit
from storage.database import outdated, writing
from storage.queries import traces
from tests.serving.running import body, journalled, route
from tests.serving.scripted_server import ScriptedEngine

ROOT = Path(__file__).resolve().parents[2]
TOML = """
name = "support"
[model]
base = "none"
[environment]
path = "environment.py:Support"
"""


class Server:
    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.project = folder / "project"
        self.project.mkdir(exist_ok=True)
        (self.project / "flywheel.toml").write_text(TOML)
        self.projects = str(self.project)
        """Folders, as a PATH has them."""
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, port: int = 0) -> subprocess.Popen[bytes]:
        """Starts a server; does not wait for it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.serving.scripted_server", self.projects, str(port)],
            env={**os.environ, "FLYWHEEL_HOME": str(self.home.root)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def up(self) -> presence.ServerRecord:
        process = self.start()
        wait(lambda: running(self.home) or process.poll() is not None)
        record = running(self.home)
        assert record is not None and record.pid == process.pid
        return record

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def engine(self) -> int:
        return int((self.home.root / "engine.pid").read_text())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    try:
        yield server
    finally:
        server.end()


def wait(condition: Callable[[], object], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def ask(url: str, text: str = "hello", stream: bool = False) -> httpx.Response:
    return httpx.post(url + "/v1/chat/completions", content=body(text, stream=stream), timeout=20)


def committed(home: Home) -> list[Trace]:
    commit(home)
    return [trace for batch in traces(home, project="support") for trace in batch]


@pytest.mark.slow
def test_every_request_answered_before_a_kill_9_is_in_the_store_once(server: Server) -> None:
    url = server.up().url
    answered: list[str] = []

    def client(number: int) -> None:
        create = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        for turn in range(50):
            content = f"question {number} {turn}"
            try:
                if turn % 2:
                    pieces = list(
                        create.chat.completions.create(
                            model="support",
                            messages=[{"role": "user", "content": content}],
                            stream=True,
                        )
                    )
                    answered.append(pieces[-1].id)
                else:
                    answer = create.chat.completions.create(
                        model="support", messages=[{"role": "user", "content": content}]
                    )
                    answered.append(answer.id)
            except openai.APIError:
                return

    with ThreadPoolExecutor(4) as pool:
        running_clients = [pool.submit(client, number) for number in range(4)]
        wait(lambda: len(answered) >= 80)
        server.processes[0].kill()
        for one in running_clients:
            one.result()
    server.processes[0].wait()
    assert 80 <= len(answered) < 200
    assert running(server.home) is None
    kept = [span.id for trace in committed(server.home) for span in trace.spans]
    assert len(kept) == len(set(kept))
    assert set(answered) <= set(kept)
    wait(lambda: presence.started(server.engine()) is None)
    before = len(kept)
    url = server.up().url
    assert ask(url).status_code == 200
    server.processes[1].terminate()
    assert server.processes[1].wait(30) == 0
    assert len(committed(server.home)) == before + 1


@pytest.mark.slow
def test_told_to_stop_it_finishes_streams_stops_the_engine_and_leaves_no_record(
    server: Server,
) -> None:
    record = server.up()
    assert server.processes[0].stdout is not None
    assert server.processes[0].stdout.readline().split() == [b"ready", record.url.encode()]
    engine = server.engine()
    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(ask, record.url, "slow", True)
        wait(lambda: httpx.get(record.url + "/health").json()["running"])
        server.processes[0].terminate()
        wait(lambda: running(server.home) is None)
        answer = streaming.result()
    assert answer.text.endswith("data: [DONE]\n\n")
    assert server.processes[0].wait(30) == 0
    assert presence.started(engine) is None
    assert not server.home.server.exists()
    assert len(committed(server.home)) == 1
    assert not list(server.home.journal.iterdir())


@pytest.mark.slow
def test_an_engine_that_dies_is_started_again_with_its_adapters(server: Server) -> None:
    server.home.root.mkdir()
    route(server.home)
    route(server.home, champion=1)
    route(server.home, champion=2)
    url = server.up().url
    assert ask(url).status_code == 200
    first = server.engine()
    os.kill(first, signal.SIGKILL)
    wait(lambda: httpx.get(url + "/health").json()["engine"]["state"] != "ready")
    away = ask(url)
    assert away.status_code == 503 and away.headers["retry-after"]
    wait(lambda: httpx.get(url + "/ready").status_code == 200)
    assert server.engine() != first
    assert ask(url).status_code == 200
    health = httpx.get(url + "/health").json()
    assert health["engine"]["restarts"] == 1
    assert health["deployments"] == {"support": "support-v2"}
    record = running(server.home)
    assert record is not None
    models = httpx.get(record.engine_url + "/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["base", "support-v2", "support-v1"]


@pytest.mark.slow
def test_an_engine_that_lives_but_cannot_answer_is_ended_and_started_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    engine = ScriptedEngine(home, Path())
    state = EngineState()
    keeper = Keeper(home, frozenset({"support"}), engine, state, pulse_s=0.1)

    async def scenario() -> None:
        await keeper.start()
        keeping = asyncio.create_task(keeper.keep())
        await until(lambda: state.phase == "ready")
        await asyncio.to_thread(ask, engine.url, "break")
        await until(lambda: state.restarts == 1 and state.phase == "ready")
        keeping.cancel()

    async def until(condition: Callable[[], bool]) -> None:
        await asyncio.to_thread(wait, condition)

    try:
        asyncio.run(scenario())
        assert ask(engine.url).status_code == 200
    finally:
        engine.stop()


@pytest.mark.slow
def test_a_second_server_is_told_who_has_the_home_and_a_taken_port_is_named(
    server: Server,
) -> None:
    record = server.up()
    second = server.start()
    _, said = second.communicate(timeout=30)
    assert second.returncode == 1
    assert str(record.pid).encode() in said and record.url.encode() in said
    assert running(server.home) == record
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server.home = Home(server.home.root.parent / "other")
        third = server.start(taken.getsockname()[1])
        _, said = third.communicate(timeout=30)
    assert third.returncode == 1
    assert str(taken.getsockname).encode() not in said and b"another port" in said
    assert b"Traceback" not in said


@pytest.mark.slow
def test_a_store_of_an_earlier_version_is_brought_up_at_the_start(server: Server) -> None:
    with writing(server.home, wait_s=10) as database:
        database.execute("DELETE FROM migrations WHERE number > 3")
    assert outdated(server.home, wait_s=10)
    server.up()
    assert not outdated(server.home, wait_s=10)


@pytest.mark.slow
def test_a_project_that_nothing_serves_yet_is_served_by_its_base_model(server: Server) -> None:
    url = server.up().url
    assert httpx.get(url + "/health").json()["deployments"] == {"support": "support-v0"}
    route_now = routing.read(server.home).projects["support"]
    assert (route_now.champion.version, route_now.champion.adapter) == (0, None)


def test_a_record_of_a_process_that_is_gone_or_another_is_no_server(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert running(home) is None
    record = presence.announce(home, "http://127.0.0.1:1", "http://127.0.0.1:2", frozenset({"a"}))
    assert running(home) == record and record.pid == os.getpid()
    other = msgspec.structs.replace(record, started="another boot:1")
    home.server.write_bytes(msgspec.json.encode(other))
    assert running(home) is None
    home.server.write_text("{")
    assert running(home) is None
    child = subprocess.Popen(["sleep", "60"])
    alive = msgspec.structs.replace(
        record, pid=child.pid, started=presence.started(child.pid) or ""
    )
    home.server.write_bytes(msgspec.json.encode(alive))
    assert running(home) == alive
    child.kill()
    wait(lambda: presence.started(child.pid) is None)
    assert running(home) is None
    child.wait()
    assert journalled(home) == []


# --- with the embedded engine and the tests' tiny model -----------------------------------------


@pytest.fixture(scope="module")
def tiny() -> Project:
    return load_project(ROOT / "tests" / "sorting")


def settings_of(home: Home) -> Settings:
    return Settings(home=home.root, threads=1)


@pytest.mark.slow
def test_ensure_gives_one_server_to_all_who_ask_and_ends_it(tmp_path: Path, tiny: Project) -> None:
    home = Home(tmp_path)
    with ensure(home, tiny, settings_of(home)) as record:
        with ensure(home, tiny, settings_of(home)) as again:
            assert again == record == running(home)
        create = openai.OpenAI(base_url=record.url + "/v1", api_key="none").chat.completions.create
        asked: Any = {"model": "sorting", "messages": [{"role": "user", "content": "3 1 2"}]}
        answers = [create(**asked, n=2, temperature=0.7, seed=1), create(**asked, max_tokens=2)]
        pieces = list(create(**asked, temperature=0, stream=True))
        whole = create(**asked, temperature=0)
        other = load_project(ROOT / "tests" / "sorting").model_copy(update={"name": "other"})
        with pytest.raises(Busy, match="sorting"), ensure(home, other, settings_of(home)):
            pass
    assert running(home) is None and presence.started(record.pid) is None
    streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert streamed == whole.choices[0].message.content
    commit(home)
    kept = {trace.external_id: trace for batch in traces(home) for trace in batch}
    assert set(kept) == {answers[0].id, answers[1].id, pieces[0].id, whole.id}
    for trace in kept.values():
        assert trace.fidelity == "trainable", trace.fidelity_reasons
        (span,) = trace.spans
        assert span.call and span.call.deployment == "sorting-v0"
        for choice in span.call.choices:
            assert choice.tokens and choice.tokens.logprobs and choice.tokens.prompt_ids
            assert len(choice.tokens.logprobs) == len(choice.tokens.completion_ids)
    first, second = (kept[one].spans[0].call for one in (pieces[0].id, whole.id))
    assert first and second
    assert first.choices == second.choices


@pytest.mark.slow
def test_a_server_never_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from flywheel.home import Home\n"
        "from flywheel.project import load_project; from flywheel.settings import Settings\n"
        "from serving.server import ensure\n"
        "home = Home(Path(sys.argv[1])); project = load_project(Path('tests/sorting'))\n"
        "with ensure(home, project, Settings(home=home.root, threads=1)): time.sleep(600)\n"
    )
    home = Home(tmp_path)
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT)
    try:
        wait(lambda: running(home), 120)
        record = running(home)
        assert record is not None
        engines = [child.pid for child in psutil.Process(record.pid).children(recursive=True)]
        assert engines
    finally:
        parent.kill()
        parent.wait()
    wait(lambda: running(home) is None)
    wait(lambda: not any(presence.started(engine) for engine in engines))


@pytest.mark.slow
def test_a_model_that_is_not_there_is_said_by_name(tmp_path: Path, tiny: Project) -> None:
    project = tiny.model_copy(update={"model": tiny.model.model_copy(update={"base": "nowhere"})})
    home = Home(tmp_path / "home")
    with pytest.raises(FlywheelError, match="nowhere"):
        serve(home, [project], settings_of(home), port=0)
    assert running(home) is None and not home.routing.exists()

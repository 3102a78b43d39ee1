"""Turns among faults end with a clear message, nothing lost, and the old champion serving."""

import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from flywheel import progress
from flywheel.errors import (
    Busy,
    CorruptFile,
    EngineError,
    FlywheelError,
    Full,
    MissingPart,
    ProjectError,
)
from flywheel.home import Home
from flywheel.project import load_project
from flywheel.settings import Settings
from tests.app.calling import Said, call

pytestmark = pytest.mark.slow


@pytest.fixture
def project(project_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A quick turn: few problems, trained in this process."""
    monkeypatch.setenv("FLYWHEEL_TRAINER", "inline")
    file = project_folder / "flywheel.toml"
    # The gate needs little to be convinced: what comes after it is looked at here.
    text = file.read_text().replace('accept = "better"', 'accept = "better"\nconfidence = 0.6')
    file.write_text(text + "\n[problems]\nmax_train = 32\nmax_heldout = 24\n")
    return project_folder


def deliver(home: Home, traffic: ModuleType, count: int = 90) -> None:
    from storage.inbox import Inbox

    asks = traffic.asks(count)
    Inbox(home).append(traffic.recorded("sorting", asks, "sorting-v0"))
    Inbox(home).append(traffic.feedback("sorting", asks))


@contextmanager
def at(step: str, act: Callable[[], None]) -> Iterator[None]:
    """Does `act` once, when the turn says for the first time that it is at `step`."""
    waiting = [act]

    def heard(name: str, done: int, total: int | None, note: str) -> None:
        if name == step and waiting:
            waiting.pop()()

    stop = progress.listen(heard)
    try:
        yield
    finally:
        stop()
    assert not waiting, f"no turn was ever at {step!r}"


def champion(home: Home) -> str:
    from serving.routing import read

    return read(home).projects["sorting"].champion.name


def decisions(home: Home) -> list[tuple[str, str]]:
    from storage.committer import commit
    from storage.queries import records

    commit(home)
    found = sorted(records(home, "decision"), key=lambda one: one.at)
    return [(one.gate, one.outcome) for one in found]


def engine_pid(home: Home) -> int:
    """Of the server's children; the others are its gateway processes."""
    from serving.server import running

    server = running(home)
    assert server
    children = Path(f"/proc/{server.pid}/task").glob("*/children")
    found = {int(pid) for each in children for pid in each.read_text().split()}
    (engine,) = (
        pid for pid in found if b"serving.engines" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return engine


@pytest.fixture
def small_disk(home: Home) -> Iterator[Home]:
    """The home on a disk of its own, which is full soon."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(home.root)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only who may mount has a disk to fill")
    try:
        yield home
    finally:
        subprocess.run(["umount", "--lazy", str(home.root)], check=True)


@contextmanager
def a_registry_that_is_no_database(home: Home) -> Iterator[None]:
    home.mlflow.mkdir()
    file = home.mlflow / "mlflow.db"
    file.write_bytes(b"this is no database, it is text" * 1000)
    yield
    file.unlink()


@contextmanager
def a_full_disk(home: Home, step: str) -> Iterator[None]:
    filler = home.root / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            for size in (2**20, 2**12):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    pass

    with at(step, fill):
        yield
    filler.unlink()


@contextmanager
def a_locked_registry(home: Home) -> Iterator[None]:
    from tasks.tracking import client_at

    client_at(home).search_experiments()
    holding: list[sqlite3.Connection] = []

    def lock() -> None:
        file = home.mlflow / "mlflow.db"
        holding.append(sqlite3.connect(file, check_same_thread=False))
        holding[0].execute("BEGIN EXCLUSIVE")

    with at("sampling rollouts", lock):
        yield
    holding[0].close()


def spoil_the_adapter(home: Home) -> None:
    """Bits are flipped in the middle of its weights."""
    from tasks.turns import turn_under_way

    this = turn_under_way(home, "sorting")
    assert this
    file = home.runs / this.run_id / "adapter" / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    for place in range(len(data) // 2, len(data) // 2 + 400):
        data[place] ^= 0x41
    file.unlink()
    file.write_bytes(data)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_turn_met_by_one_fault_after_another_loses_nothing_and_the_old_champion_serves(
    prefect_server: str, small_disk: Home, project: Path, traffic: ModuleType
) -> None:
    """All in one turn; each is seen first elsewhere: a full disk in tests/storage
    (test_committer.py, test_inbox.py), a registry that is no database in test_trials.py, an engine
    killed in tests/serving/engines/test_process.py, a spoiled adapter in
    tests/serving/test_promotion.py, a turn broken off and run again in test_kills.py."""
    from flows.turn import turn
    from serving.server import ensure
    from storage.queries import counts, records

    home = small_disk
    deliver(home, traffic)
    killed = []

    def kill() -> None:
        killed.append(engine_pid(home))
        threading.Timer(0.2, os.kill, (killed[0], signal.SIGKILL)).start()

    with ensure(home, load_project(project), Settings()):
        with (
            a_registry_that_is_no_database(home),
            pytest.raises(CorruptFile, match="not a database: move it away"),
        ):
            turn(str(project))
        for step in ("sampling rollouts", "training"):
            with a_full_disk(home, step), pytest.raises(Full, match="no space left"):
                turn(str(project))
        with a_locked_registry(home), pytest.raises(FlywheelError, match="locked") as told:
            turn(str(project))
        assert str(home.mlflow) in str(told.value)
        assert champion(home) == "sorting-v0"
        with at("evaluating", kill), at("promoting", lambda: spoil_the_adapter(home)):
            report = turn(str(project))
        assert engine_pid(home) not in killed
    assert report["evaluation"]["problems"] == 24
    assert counts(home, "sorting")["rollouts"] == 32 * 4
    assert (report["decision"], report["gate"]) == ("refused", "serving"), report["reason"]
    assert report["deployment"] == champion(home) == "sorting-v0"
    assert len(records(home, "dataset")) == 1
    assert decisions(home).count(("data", "passed")) == 1
    assert decisions(home)[-1] == ("serving", "refused")


@pytest.mark.soak
def test_a_second_turn_is_told_and_a_server_killed_amid_the_first_fails_it_until_the_next(
    prefect_server: str, home: Home, project: Path, traffic: ModuleType
) -> None:
    """First looks: test_kills.py's turns, and test_turn_vllm.py's killed server."""
    from flows.turn import turn
    from serving.server import running

    deliver(home, traffic)
    second = []

    def meanwhile() -> None:
        second.append(command("turn", project, home, prefect_server))

    def kill() -> None:
        server = running(home)
        assert server
        os.kill(server.pid, signal.SIGKILL)

    with (
        at("sampling rollouts", meanwhile),
        at("evaluating", kill),
        pytest.raises(EngineError, match="run the turn again"),
    ):
        turn(str(project))
    assert second[0].code == 1 and "already under way" in second[0].object()["error"]
    assert champion(home) == "sorting-v0"
    assert turn(str(project))["deployment"] == champion(home)


def test_a_model_that_is_not_here_is_told_with_what_brings_it(
    home: Home, project: Path, traffic: ModuleType, prefect_server: str
) -> None:
    from flows.turn import turn

    deliver(home, traffic, 3)
    (project / "base").unlink()
    with pytest.raises(MissingPart, match="make model") as told:
        turn(str(project))
    assert told.value.exit_code == 2
    said = command("turn", project, home, prefect_server)
    assert said.code == 2 and "make model" in said.object()["error"]


def test_an_environment_that_does_not_run_is_told_with_its_line(
    home: Home, project: Path, prefect_server: str
) -> None:
    from flows.turn import turn

    (project / "environment.py").write_text("class Sorting(:\n")
    with pytest.raises(ProjectError, match=r"environment\.py.*SyntaxError"):
        turn(str(project))


def test_a_reward_that_raises_grades_null_and_the_turn_is_refused_not_failed(
    home: Home, project: Path, traffic: ModuleType, prefect_server: str
) -> None:
    from flows.turn import turn
    from storage.judgements import grades

    deliver(home, traffic)
    file = project / "environment.py"
    file.write_text(file.read_text().replace("return choice", "raise KeyError; return choice"))
    state = turn(str(project), return_state=True)
    assert (state.type.value, state.name) == ("COMPLETED", "Refused")
    report = state.result()
    assert (report["decision"], report["gate"]) == ("refused", "data")
    given = [one for one in grades(home, project="sorting") if one.reward == "correct"]
    assert all(one.value is None and one.reason for one in given)
    assert len([one for one in given if "KeyError" in str(one.reason)]) >= 32 * 4


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (TypeError("a mistake"), 1),
        (AssertionError("a mistake"), 1),
        (Full("no space left"), 1),
        (OSError(28, "No space left on device"), 1),
        (MissingPart("no model"), 1),
        (ConnectionResetError("gone"), 3),
        (EngineError("gone"), 3),
        (Busy("in use"), 3),
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again_and_what_will_not_is_not(
    error: Exception, tries: int, prefect_server: str, home: Home, project: Path
) -> None:
    from prefect import flow

    from serving.routing import base_deployment
    from tasks.step import step
    from tasks.turns import Turn

    tried = []

    @step(minutes=1, keep=False)
    def fails(turn: Turn) -> None:
        tried.append(turn)
        raise error

    this = Turn(
        run_id="r",
        project="sorting",
        folder=str(project),
        start=base_deployment("sorting", "base"),
        configuration="c",
        sequence=0,
        snapshot="s",
    )

    @flow
    def failing() -> None:
        fails.with_options(retry_delay_seconds=0)(this)  # type: ignore[attr-defined]

    with pytest.raises(Exception):  # noqa: B017
        failing()
    assert len(tried) == tries


def command(name: str, project: Path, home: Home, prefect_server: str) -> Said:
    return call(name, project, "--json", home=home.root, PREFECT_API_URL=prefect_server)

"""Flows on a schedule and on events, by a real Prefect server and worker that are killed meanwhile.

All tests share one `flywheel prefect` with short beats. The last one kills it.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from flywheel.home import Home
from flywheel.project import Project, load_project
from tests.app.calling import FLYWHEEL, call, surroundings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
WAIT_S = 600.0
"""Nothing is late before that: a machine may be slow, and have other work."""
SORTING = Path(__file__).resolve().parents[1] / "sorting"
QUICK = {
    "FLYWHEEL_TRAINER": "inline",
    "FLYWHEEL_BEAT_S": "0.5",
    "FLYWHEEL_SILENT_S": "30",
    "PREFECT_WORKER_QUERY_SECONDS": "1",
}
TOML = """
confidence = 0.6
min_problems = 8
[problems]
max_train = 24
max_heldout = 16
[schedule]
ingest = "off"
grade = {grade}
curate = "off"
turn = "0 4 * * 1"
registry = "off"
enough_graded = {enough}
"""


class Kept(NamedTuple):
    home: Home
    process: "subprocess.Popen[str]"
    url: str
    """Of the API."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """`flywheel prefect` in a home of its own."""
    home = Home(tmp_path_factory.mktemp("prefect") / "home")
    with subprocess.Popen(
        [*FLYWHEEL, "prefect", "--port", "0", "--json"],
        env=surroundings(home.root, **QUICK),
        cwd=home.root.parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            said = json.loads(process.stdout.readline())
            first = project_in(tmp_path_factory.mktemp("first") / "sorting")
            told = call("deploy", first.folder, "--json", home=home.root)
            assert told.object()["server"] == said["api_url"], "it found the one that runs"
            yield Kept(home, process, said["api_url"])
        finally:
            process.terminate()


@pytest.fixture(autouse=True)
def at_home(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is called in this process speaks of that home and to that server."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setenv("FLYWHEEL_HOME", str(kept.home.root))
    monkeypatch.setenv("PREFECT_API_URL", kept.url)
    with temporary_settings({PREFECT_API_URL: kept.url}):
        yield


def project_in(
    folder: Path, *, name: str = "sorting", grade: Any = '"off"', enough: int = 40
) -> Project:
    folder.mkdir(exist_ok=True)
    shutil.copy(SORTING / "environment.py", folder)
    if not (folder / "base").is_symlink():
        (folder / "base").symlink_to(SORTING / "base")
    text = (SORTING / "flywheel.toml").read_text().replace('"sorting"', f'"{name}"')
    (folder / "flywheel.toml").write_text(text + TOML.format(grade=grade, enough=enough))
    return load_project(folder)


def client() -> Any:
    from prefect.client.orchestration import get_client

    return get_client(sync_client=True)


def deployed(home: Home, project: Project) -> dict[str, Any]:
    from flows.deployments import ours

    with client() as at:
        return ours(at, home, project.name)


def runs(flow: str, project: str = "sorting") -> list[Any]:
    """The flow runs of a deployment that have begun or ended, oldest first."""
    with client() as at:
        there = at.read_deployment_by_name(f"{flow}/{project}")
        wanted = {"deployment_id": {"any_": [there.id]}}
        from prefect.client.schemas.filters import FlowRunFilter

        found = at.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted))
    begun = [one for one in found if one.run_count or one.state.is_final()]
    return sorted(begun, key=lambda one: one.expected_start_time)


def start(flow: str, at: datetime | None = None, project: str = "sorting", **env: str) -> Any:
    """A run of a deployment, by its id."""
    from prefect.states import Scheduled

    with client() as server:
        there = server.read_deployment_by_name(f"{flow}/{project}")
        made = server.create_flow_run_from_deployment(
            there.id,
            state=Scheduled(scheduled_time=at) if at else None,
            job_variables={"env": env} if env else None,
        )
    return made.id


def state(run_id: Any) -> Any:
    with client() as at:
        return at.read_flow_run(run_id)


def until(what: str, there: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        found = there()
        if found:
            return found
        time.sleep(0.3)
    pytest.fail(f"waited {wait_s} s for: {what}")


def ended(run_id: Any, wait_s: float = WAIT_S) -> Any:
    def final() -> Any:
        run = state(run_id)
        return run if run.state and run.state.is_final() else None

    return until(f"the end of run {run_id}", final, wait_s)


def pids(module: str, parent: int | None = None) -> list[int]:
    """Processes `python -m module …`, of one parent or of all."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if words[1:3] == [b"-m", module.encode()] and parent in (None, above):
            found.append(int(folder.name))
    return found


def deliver(home: Home, traffic: ModuleType, count: int = 70) -> None:
    from storage.inbox import Inbox

    asks = traffic.asks(count)
    Inbox(home).append(traffic.recorded("sorting", asks, "sorting-v0"))
    Inbox(home).append(traffic.feedback("sorting", asks))


@contextmanager
def committer_held(home: Home) -> Iterator[None]:
    """Something waits to be committed, and `ingest` hangs as long as this lasts."""
    from flywheel.records import Grade
    from storage.inbox import Inbox
    from storage.locks import held

    Inbox(home).append([Grade(trace_id="none", reward="none", value=None, reason="a test")])
    with held(home.locks / "commit.lock", wait_s=60, busy="held"):
        yield


def test_a_schedule_and_an_event_start_a_turn_that_ends_once_though_all_are_killed(
    kept: Kept, tmp_path_factory: pytest.TempPathFactory, traffic: ModuleType
) -> None:
    """Grading runs by its schedule and tells that enough was graded; that starts a turn; the worker
    is killed amid the turn's sampling, the server amid its training."""
    from flows.deployments import deploy
    from serving.routing import read
    from storage.queries import counts, records

    home, folder = kept.home, tmp_path_factory.mktemp("projects") / "sorting"
    deliver(home, traffic)
    deploy(home, [project_in(folder, grade=8)])
    (worker,) = pids("flows.worker", kept.process.pid)
    open_turn = until("a turn", lambda: list(home.turns.glob("*.json")))[0]
    run_folder = home.runs / json.loads(open_turn.read_text())["run_id"]
    until("rollouts", lambda: (run_folder / "problems.json").exists())
    os.kill(worker, signal.SIGKILL)

    until("a new try", lambda: any(one.run_count >= 2 for one in runs("turn")))
    (server,) = pids("flows.server", kept.process.pid)
    until("training", lambda: (run_folder / "dataset.json").exists())
    os.kill(server, signal.SIGKILL)
    until("the server", lambda: pids("flows.server", kept.process.pid) not in ([], [server]))
    from flows.server import answers

    until("its answer", lambda: answers(kept.url))
    (turn,) = until("one turn", lambda: [one for one in runs("turn") if one.state.is_final()])

    assert turn.state.name in ("Promoted", "Refused") and turn.run_count >= 2
    assert turn.name.startswith("turn of sorting, 20")
    assert not turn.auto_scheduled
    assert any(one.auto_scheduled for one in runs("grade")), "started by the schedule"
    steps = steps_of(run_folder)
    assert steps["learning_gate"] == 1 and steps["mine_problems"] == 1
    said = Counter((one.gate, one.outcome) for one in records(home, "decision", project="sorting"))
    assert max(said.values()) == 1, said
    assert counts(home, "sorting")["rollouts"] == 24 * 4
    assert len(records(home, "run")) == 1
    champion = read(home).projects["sorting"].champion.name
    assert champion == ("sorting-v1" if turn.state.name == "Promoted" else "sorting-v0")

    before = len(runs("grade"))
    until("more grading", lambda: len(runs("grade")) >= before + 2)
    assert len(runs("turn")) == 1, "what was told once is not told again"
    deploy(home, [project_in(folder)])


def steps_of(run_folder: Path) -> Counter[str]:
    lines = (run_folder / "steps.jsonl").read_text().splitlines()
    return Counter(json.loads(one)["step"] for one in lines)


def test_deploying_again_changes_nothing_a_changed_file_what_it_says_and_all_can_go(
    kept: Kept, tmp_path: Path
) -> None:
    from flows.deployments import deploy

    home = kept.home
    project = project_in(tmp_path / "again", name="again", grade='"*/5 * * * *"')
    names = deploy(home, [project])["again"]
    assert names == [f"{flow}/again" for flow in ("curate", "grade", "ingest", "registry",
                                                  "retention", "trial", "turn")]  # fmt: skip
    first = deployed(home, project)
    assert triggers() == {
        "again: enough was graded, a turn starts",
        "again: answers became worse, a turn starts",
        "again: a version came, its trial starts",
    }
    assert times(first["grade"]) == ["*/5 * * * *"] and times(first["turn"]) == ["0 4 * * 1"]
    env = first["turn"].job_variables["env"]
    assert env["FLYWHEEL_HOME"] == str(home.root), "absolute, whatever the worker's own is"
    assert first["turn"].parameters == {"project": str(project.folder)}
    waiting = until("runs made ahead", lambda: scheduled(first["grade"]))

    file = project.folder / "flywheel.toml"
    text = file.read_text().replace('"*/5 * * * *"', '"off"').replace("enough_graded = 40", "")
    file.write_text('timezone = "Europe/Berlin"\n' + text.replace('"0 4 * * 1"', "3600"))
    deploy(home, [load_project(project.folder)])
    second = deployed(home, project)
    assert {flow: one.id for flow, one in second.items()} == {
        flow: one.id for flow, one in first.items()
    }
    assert times(second["grade"]) == [] and not scheduled(second["grade"]), waiting
    assert times(second["turn"]) == [timedelta(hours=1)]
    assert second["turn"].schedules[0].schedule.timezone == "Europe/Berlin"
    what_is_removed_goes_with_its_events_and_waiting_runs(home)


def times(deployment: Any) -> list[Any]:
    found = [one.schedule for one in deployment.schedules]
    return [getattr(one, "cron", None) or one.interval for one in found]


def triggers(project: str = "again") -> set[str]:
    with client() as at:
        found = {one.name for one in at.read_automations()}
    return {one for one in found if one.startswith(f"{project}: ")}


def scheduled(deployment: Any) -> list[Any]:
    from prefect.client.schemas.filters import FlowRunFilter

    wanted = {
        "deployment_id": {"any_": [deployment.id]},
        "state": {"type": {"any_": ["SCHEDULED"]}},
    }
    with client() as at:
        return list(at.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted)))


def what_is_removed_goes_with_its_events_and_waiting_runs(home: Home) -> None:
    from flows.deployments import remove

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    waiting = start("ingest", tomorrow, project="again")
    assert len(remove(home, "again")) == 7
    assert remove(home, "again") == []
    assert triggers() == set()
    from prefect.exceptions import ObjectNotFound

    with pytest.raises(ObjectNotFound):
        state(waiting)
    assert triggers("sorting"), "another project's stay"


def test_another_home_may_not_take_over_a_projects_deployments(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.deployments import deploy
    from flywheel.errors import UsageError

    other = Home(tmp_path / "other")
    monkeypatch.setenv("FLYWHEEL_HOME", str(other.root))
    with pytest.raises(UsageError, match="another name"):
        deploy(other, [project_in(tmp_path / "sorting")])


def test_a_slot_is_worked_off_once_and_a_second_run_of_it_says_so(kept: Kept) -> None:
    """Leftover runs of deleted schedules: two runs of one deployment and one expected start."""
    moment = datetime.now(UTC) - timedelta(minutes=10)
    first = ended(start("ingest", moment))
    second = ended(start("ingest", moment))
    assert first.state.name == "Completed"
    assert (second.state.type.value, second.state.name) == ("COMPLETED", "Skipped")
    assert str(first.id) in second.state.message


def test_a_run_that_hangs_is_found_put_back_and_ends(kept: Kept) -> None:
    with committer_held(kept.home):
        run = start("ingest")
        until("its work", lambda: state(run).state.is_running())
        pid = pid_of(kept.home, run)
        assert pid
        os.kill(pid, signal.SIGSTOP)
        until("the second try", lambda: pid_of(kept.home, run) not in (None, pid))
    done = ended(run)
    assert done.state.name == "Completed" and done.run_count >= 2
    assert not Path(f"/proc/{pid}").exists()


def test_a_run_that_dies_each_time_is_given_up(kept: Kept) -> None:
    from flows.reaper import tries_of

    run = start("ingest", FLYWHEEL_BEAT_S="none")  # its process ends before it is heard of
    until("all its tries", lambda: tries_of(kept.home, str(run)) == 3)
    until("the end of the last", lambda: state(run).state.is_crashed())
    time.sleep(5)
    assert state(run).state.is_crashed() and tries_of(kept.home, str(run)) == 3


def test_a_run_over_its_limit_is_ended_and_the_next_one_is_not_stopped_by_it(kept: Kept) -> None:
    with committer_held(kept.home):
        done = ended(start("ingest", FLYWHEEL_RUN_LIMIT_S="6"))
    assert (done.state.type.value, done.state.name) == ("FAILED", "TimedOut")
    assert "6 s" in done.state.message and done.run_count <= 1, "not tried again"
    assert ended(start("ingest")).state.name == "Completed"


def pid_of(home: Home, run: Any) -> int | None:
    from tasks.beats import beats

    beat = beats(home).get(str(run))
    return beat.pid if beat else None


def test_a_worker_without_the_model_says_what_to_do_and_goes_on(kept: Kept, tmp_path: Path) -> None:
    """An event starts the turn, once though it came twice; another a version's trial."""
    from flows.deployments import deploy
    from tasks.events import BROKEN, REGISTERED, emit

    project = project_in(tmp_path / "bare", name="bare")
    deploy(kept.home, [project])
    (project.folder / "base").unlink()
    emit("bare", BROKEN, "bare-v0", {"reason": "worse"})
    emit("bare", BROKEN, "bare-v0", {"reason": "worse"})
    emit("bare", REGISTERED, "7", {"version": "7"})
    (started,) = until("the event's turn", lambda: runs("turn", "bare"))
    failed = ended(started.id)
    assert (failed.state.type.value, failed.run_count) == ("FAILED", 1)
    assert "make model" in failed.state.message
    assert ended(start("ingest", project="bare")).state.name == "Completed"
    assert len(runs("turn", "bare")) == 1
    (trial,) = until("the version's trial", lambda: runs("trial", "bare"))
    assert trial.parameters["version"] == "7" and trial.parameters["promote"] is False
    assert "make model" in ended(trial.id).state.message


def test_a_run_whose_deployment_is_gone_ends_marked_and_the_worker_goes_on(kept: Kept) -> None:
    run = start("ingest", datetime.now(UTC) + timedelta(seconds=20))
    with closing(sqlite3.connect(kept.home.prefect / "prefect.db", timeout=60)) as database:
        database.execute(
            "UPDATE flow_run SET deployment_id = ?, next_scheduled_start_time = ? WHERE id = ?",
            (str(uuid4()), f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}", str(run)),
        )
        database.commit()
    gone = ended(run)
    assert gone.state.is_cancelled() and "no longer exists" in gone.state.message
    assert ended(start("ingest")).state.name == "Completed"


def test_commands_use_the_server_that_runs_and_a_second_one_is_refused(kept: Kept) -> None:
    with client() as at:
        before = len(at.read_flow_runs())
    said = call("ingest", "--json", home=kept.home.root)
    assert said.code == 0, said.err
    with client() as at:
        assert len(at.read_flow_runs()) == before + 1
    second = call("prefect", "--port", "0", "--json", home=kept.home.root)
    assert second.code == 1 and "already" in second.object()["error"]


def test_a_command_outlives_the_death_of_its_own_server(tmp_path: Path) -> None:
    home = Home(tmp_path / "alone")
    home.locks.mkdir(parents=True)
    arguments = [*FLYWHEEL, "ingest", "--json"]
    with committer_held(home):
        command = subprocess.Popen(
            arguments, env=surroundings(home.root), stdout=subprocess.PIPE, text=True
        )
        (server,) = until("its server", lambda: pids("flows.server", command.pid))
        until("the step", lambda: has_open(command.pid, home.locks / "commit.lock"))
        os.kill(server, signal.SIGKILL)
        until("another", lambda: pids("flows.server", command.pid) not in ([], [server]))
    said, _ = command.communicate(timeout=120)
    assert command.returncode == 0, said
    assert json.loads(said)["segments"] == 1


def test_a_command_whose_server_is_gone_for_good_says_that_it_goes_on_later(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "alone")
    home.locks.mkdir(parents=True)
    said_at = tmp_path / "url"
    other = subprocess.Popen(
        [sys.executable, "-m", "flows.server", "--said", str(said_at)],
        env=surroundings(home.root, PREFECT_HOME=str(tmp_path / "other")),
    )
    url = until("its URL", lambda: said_at.exists() and said_at.read_text())
    environment = surroundings(home.root, PREFECT_API_URL=url, PREFECT_CLIENT_MAX_RETRIES="1")
    arguments = [*FLYWHEEL, "ingest", "--json"]
    with committer_held(home):
        command = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True)
        until("the step", lambda: has_open(command.pid, home.locks / "commit.lock"))
        other.kill()
        other.wait()
    said, _ = command.communicate(timeout=240)
    assert command.returncode == 1
    error = json.loads(said.splitlines()[-1])["error"]
    assert url in error and "run the same command again" in error
    from storage.inbox import Inbox

    assert Inbox(home).pending() == [], "what it was at was done"


def has_open(pid: int, file: Path) -> bool:
    links = Path(f"/proc/{pid}/fd").glob("*")
    return any(str(file) == os.path.realpath(link) for link in links)


def test_nothing_outlives_flywheel_prefect_killed(kept: Kept) -> None:
    """The last test: it ends what the others use."""
    with committer_held(kept.home):
        run = start("ingest")
        pid = until("its beat", lambda: pid_of(kept.home, run))
        family = [
            pid,
            *pids("flows.server", kept.process.pid),
            *pids("flows.worker", kept.process.pid),
        ]
        assert len(family) == 3
        os.kill(kept.process.pid, signal.SIGKILL)
        until("their end", lambda: not any(Path(f"/proc/{one}").exists() for one in family), 20)
    from flows.server import running

    assert running(kept.home) is None

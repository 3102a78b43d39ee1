"""The commands on a real home: projects, imports, one promoted turn, rollback, status, lineage."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from filelock import FileLock

from flywheel.home import Home
from tests.app.calling import FLYWHEEL, surroundings
from tests.app.conftest import SORTING, Promoted, deliver

Flywheel = Callable[..., Any]
slow = pytest.mark.slow


class Served:
    """A `flywheel serve --json` that answers."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout
        self.process, line = process, process.stdout.readline()
        assert line, process.communicate()[1]
        self.said: dict[str, Any] = json.loads(line)

    def answered_by(self) -> str:
        """The deployment that answers a request now."""
        url = f"{self.said['url']}/v1/chat/completions"
        said = [
            {"role": "system", "content": "Sort the digits."},
            {"role": "user", "content": "3 1 2"},
        ]
        asked = {"model": "sorting", "messages": said, "max_tokens": 8}
        answer = httpx.post(url, json=asked, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["model"])

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        found = {int(pid) for each in children for pid in each.read_text().split()}
        (engine,) = (
            pid for pid in found if b"serving.engines" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        return engine


@contextlib.contextmanager
def serving(project: Path, home: Path) -> Iterator[Served]:
    with subprocess.Popen(
        [*FLYWHEEL, "serve", str(project), "--port", "0", "--json"],
        env=surroundings(home),
        cwd=home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Served(process)
        finally:
            if process.poll() is None:
                process.kill()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_new_project_takes_traces_in_and_tells_of_them(
    flywheel: Flywheel, tmp_path: Path
) -> None:
    folder, rows = tmp_path / "mail-room", tmp_path / "rows.jsonl"
    made = flywheel("init", folder, "--json")
    assert made.object()["files"] == ["README.md", "environment.py", "flywheel.toml"]
    assert 'name = "mail-room"' in (folder / "flywheel.toml").read_text()
    again = flywheel("init", folder, "--json")
    assert again.code == 2 and "already" in again.object()["error"]

    said = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}
    rows.write_text(json.dumps({"messages": said}) + '\n{"messages": [tor\n')
    first = flywheel("import", rows, "--project", folder, "--json")
    assert first.code == 0
    found = first.object()
    wanted = {"files", "traces", "spans", "duplicates", "quarantined", "unmapped_fields", "formats"}
    assert wanted <= set(found)
    assert (found["traces"], found["quarantined"], found["duplicates"]) == (1, 1, 0)
    again = flywheel("import", rows, "--project", folder, "--json")
    assert (again.object()["traces"], again.object()["duplicates"]) == (0, 1)
    plain = flywheel("import", rows, "--project", folder)
    assert plain.code == 0
    assert f"quarantined {rows}:2:" in plain.err
    rows.write_text("nothing that can be read\n")
    assert flywheel("import", rows, "--project", folder, "--json").code == 1


def test_a_home_where_nothing_happened_says_so(flywheel: Flywheel, tmp_path: Path) -> None:
    found = flywheel("status", "--json").object()
    assert (found["server"], sum(found["waiting"].values()), found["projects"]) == (None, 0, {})
    said = flywheel("status")
    assert said.code == 0 and "none yet" in said.out
    assert list(flywheel("status", SORTING, "--json").object()["projects"]) == ["sorting"]


def test_status_tells_a_stopped_turn_from_one_under_way_and_a_server_that_starts(
    tmp_path: Path,
) -> None:
    import msgspec

    from app.commands.status_ import status, turn_words
    from serving.presence import only_server
    from serving.routing import ProjectRoute, Routing, base_deployment, replace
    from tasks.turns import Turn

    home = Home(tmp_path / "home")
    for folder in (home.turns, home.locks):
        folder.mkdir(parents=True)
    start = base_deployment("sorting", str(SORTING / "base"))
    route = ProjectRoute(project="sorting", base_model=start.base_model, champion=start)
    replace(home, Routing(projects={"sorting": route}))
    turn = Turn(run_id="r", project="sorting", folder=str(SORTING), start=start,
                configuration="c", sequence=1, snapshot="s")  # fmt: skip
    (home.turns / "sorting.json").write_bytes(msgspec.json.encode(turn))
    with FileLock(home.locks / "turn-sorting.lock"), only_server(home):
        found = status(home)
        assert turn_words(found["projects"]["sorting"]) == "r" and found["starting"]
    found = status(home)
    told = turn_words(found["projects"]["sorting"])
    assert told == f"r: stopped; `flywheel turn {SORTING}` goes on with it"
    assert (found["server"], found["starting"]) == (None, False)


def test_rollback_of_what_was_never_promoted_is_wrong_usage(
    flywheel: Flywheel,
) -> None:
    said = flywheel("rollback", SORTING, "--json")
    assert said.code == 2
    assert "no previous deployment" in said.object()["error"]


@slow
def test_a_turn_is_one_object_for_scripts_and_lines_for_people(promoted: Promoted) -> None:
    turned = promoted.turned
    assert turned.code == 0, turned
    report = turned.object()
    assert (report["decision"], report["deployment"]) == ("promoted", "sorting-v1")
    for step in ("sampling rollouts", "training", "evaluating", "promoting"):
        assert step in turned.err, turned.err
    assert "Traceback" not in turned.err and "Warning" not in turned.err, turned.err


@slow
def test_status_and_lineage_tell_of_the_promotion(
    flywheel: Flywheel, promoted: Promoted, prefect_url: str
) -> None:
    status = flywheel("status", "--json", home=promoted.home).object()
    project = status["projects"]["sorting"]
    assert (project["champion"], project["previous"], project["turn"]) == (
        "sorting-v1",
        "sorting-v0",
        None,
    )
    assert project["last_decision"]["outcome"] == "promoted"
    assert (status["server"], sum(status["waiting"].values())) == (None, 0)

    chain = flywheel("lineage", "sorting-v1", "--json", home=promoted.home).object()
    kinds = {link["kind"] for link in chain["links"]}
    assert {"deployment", "checkpoint", "run", "dataset", "trace"} <= kinds
    trace = next(link["id"] for link in chain["links"] if link["kind"] == "trace")
    back = flywheel("lineage", trace, "--json", home=promoted.home).object()
    assert "sorting-v1" in [link["id"] for link in back["links"]]
    ingested = flywheel(
        "ingest", promoted.project, "--json", home=promoted.home, PREFECT_API_URL=prefect_url
    )
    assert ingested.code == 0 and ingested.object()["segments"] == 0


@slow
def test_rollback_is_what_the_next_request_meets_and_goes_back_and_forth(
    flywheel: Flywheel, promoted: Promoted, promoted_home: Path
) -> None:
    from serving.registry import Registry

    with serving(promoted.project, promoted_home) as served:
        assert served.answered_by() == "sorting-v1"
        for back, other in (("sorting-v0", "sorting-v1"), ("sorting-v1", "sorting-v0")):
            begun = time.monotonic()
            said = flywheel("rollback", promoted.project, "--json", home=promoted_home)
            print(f"rollback to {back}: {time.monotonic() - begun:.2f} s")
            assert said.code == 0, said
            assert said.object()["name"] == back
            assert served.answered_by() == back

            status = flywheel("status", "--json", home=promoted_home).object()
            project = status["projects"]["sorting"]
            assert (project["champion"], project["previous"]) == (back, other)
            decision = project["last_decision"]
            assert (decision["outcome"], decision["deployment"], decision["replaced"]) == (
                "rolled_back",
                back,
                other,
            )
            version = re.sub(r"\D", "", back.partition("-v")[2])
            wanted, until = version if version != "0" else None, time.monotonic() + 120
            registry = Registry(Home(promoted_home))  # the server tells it, soon afterwards
            while registry.aliases("sorting").get("champion") != wanted:
                assert time.monotonic() < until
                time.sleep(0.2)
            chain = flywheel("lineage", "sorting-v1", "--json", home=promoted_home)
            assert chain.code == 0

        engine = served.engine_pid()
        served.process.send_signal(signal.SIGINT)
        out, err = served.process.communicate(timeout=60)
        assert served.process.returncode == 0, err
        assert out == "" and "Traceback" not in err
        assert gone(engine)
    assert not (promoted_home / "server.json").exists()


@slow
def test_rollback_without_a_server_holds_from_the_next_start_on(
    flywheel: Flywheel, promoted: Promoted, promoted_home: Path
) -> None:
    said = flywheel("rollback", promoted.project, "--reason", "it was rude", home=promoted_home)
    assert said.code == 0, said
    assert "sorting-v0" in said.out and "next start" in said.out
    with serving(promoted.project, promoted_home) as served:
        assert served.answered_by() == "sorting-v0"
    status = flywheel("status", home=promoted_home)
    assert "it was rude" in status.out


@slow
def test_a_server_stopped_while_it_starts_leaves_nobody_behind(
    promoted: Promoted, promoted_home: Path
) -> None:
    with subprocess.Popen(
        [*FLYWHEEL, "serve", str(promoted.project), "--port", "0"],
        env=surroundings(promoted_home),
        cwd=promoted_home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        log = promoted_home / "logs" / "engine.log"
        before = log.stat().st_size if log.exists() else 0
        while not log.exists() or log.stat().st_size == before:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task").glob("*/children")
        born = {int(pid) for each in children for pid in each.read_text().split()}
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert all(gone(pid) for pid in born)


@slow
@pytest.mark.parametrize(
    ("stop", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.soak)],
)
def test_a_turn_that_is_stopped_leaves_nobody_behind(
    stop: signal.Signals, code: int, traffic: ModuleType, tmp_path: Path
) -> None:
    """As a terminal does it: Ctrl-C reaches all of the process group."""
    home = Home(tmp_path / "home")
    home.root.mkdir()
    deliver(home, traffic, 90)
    with subprocess.Popen(
        [*FLYWHEEL, "turn", str(SORTING), "--json"],
        env=surroundings(home.root),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr
        said = ""
        while "sampling" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        family = belonging_to(home)
        assert len(family) >= 4, "the turn, Prefect's server, ours, the engine"
        os.killpg(process.pid, stop)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    if code > 0:
        assert json.loads(out)["exit_code"] == code
        assert "Traceback" not in err and "ERROR" not in err, err
    until = time.monotonic() + 30
    while belonging_to(home) and time.monotonic() < until:
        time.sleep(0.1)
    assert belonging_to(home) == {}


def belonging_to(home: Home) -> dict[int, str]:
    """Living processes of this home: pid, command line."""
    found = {}
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdigit() and str(home.root).encode() in (place / "environ").read_bytes():
                found[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
    return found

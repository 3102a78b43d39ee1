"""`flywheel doctor`: each part is broken for real, and it says what is wrong and the remedy."""

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from app.doctor import machine
from app.doctor.examine import Told, examine, worst
from app.doctor.finding import Case, Check, Finding, ok
from app.doctor.table import CHECKS
from environments.runtimes import bwrap
from flywheel import durable, known
from flywheel.home import Home
from flywheel.project import load_project
from flywheel.settings import Settings
from tests.app.calling import FLYWHEEL, surroundings
from tests.app.conftest import SORTING, Promoted, deliver

Flywheel = Callable[..., Any]
slow = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    place = Home(tmp_path / "home")
    place.root.mkdir()
    return place


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "sorting"
    shutil.copytree(SORTING, folder)
    return folder


def said(home: Home, name: str, *folders: Path, deep: bool = False) -> list[Finding]:
    """What one check of the table finds."""
    (told,) = examine(case(home, *folders, deep=deep), {name: CHECKS[name]})
    return told.findings


def case(home: Home, *folders: Path, deep: bool = False) -> Case:
    settings = Settings(home=home.root)
    return Case(home, settings, folders, deep)


def one(findings: list[Finding], *words: str) -> Finding:
    """The one finding that says all of this."""
    fit = [each for each in findings if all(word in each.says for word in words)]
    assert len(fit) == 1, f"{words} in {findings}"
    return fit[0]


# --- how checks are run ------------------------------------------------------------------------


def test_a_check_that_raises_or_hangs_is_told_and_the_others_go_on(home: Home) -> None:
    def raises(_: Case) -> Iterator[Finding]:
        yield ok("so far")
        raise RuntimeError("odd")

    def hangs(_: Case) -> Iterator[Finding]:
        yield ok("begun")
        time.sleep(600)

    told = examine(
        case(home),
        {"a": Check(raises), "b": Check(hangs, limit_s=0.3), "c": Check(lambda _: iter([ok("c")]))},
    )
    assert [each.name for each in told] == ["a", "b", "c"]
    assert [len(each.findings) for each in told] == [2, 2, 1]
    assert "RuntimeError: odd" in told[0].findings[1].says
    assert "did not end within" in told[1].findings[1].says
    assert worst(told) == "wrong"
    assert worst([Told("c", [ok("c")])]) == "ok"


@slow
@pytest.mark.parametrize("code", [
    "import os\nos._exit(0)\n", "import sys\nsys.exit(0)\n", "import time\ntime.sleep(600)\n",
])  # fmt: skip
def test_an_environment_that_keeps_its_check_from_ending_is_named(
    home: Home, project: Path, code: str
) -> None:
    file = project / "environment.py"
    file.write_text(code)
    check = Check(CHECKS["environments"].looks, 12.0, True)
    (told,) = examine(case(home, project), {"environments": check})
    (found,) = told.findings
    assert found.level == "wrong" and found.remedy
    assert "sorting: " in found.says and str(file) in found.says


def test_a_check_that_hangs_says_at_what(home: Home) -> None:
    def hangs(_: Case) -> Iterator[Finding | str]:
        yield "one"
        yield ok("one is well")
        yield "two"
        time.sleep(600)

    (told,) = examine(case(home), {"a": Check(hangs, limit_s=0.3)})
    assert [each.level for each in told.findings] == ["ok", "wrong"]
    assert "at two; what comes after it was not looked at" in told.findings[1].says


@slow
def test_code_that_hangs_or_ends_its_process_harms_only_its_own_check(
    home: Home, project: Path
) -> None:
    file = project / "environment.py"
    file.write_text("import os\nos._exit(7)\n")
    found = said(home, "environments", project)
    assert "ended with code 7" in one(found, "check of environments").says
    file.write_text("while True: pass\n")
    (told,) = examine(
        case(home, project), {"environments": Check(CHECKS["environments"].looks, 3.0, True)}
    )
    assert "did not end within" in told.findings[0].says
    assert told.findings[0].remedy


# --- machine and installation ------------------------------------------------------------------


def test_packages_that_are_missing_or_others_are_named(tmp_path: Path) -> None:
    lock, site = tmp_path / "lock.txt", tmp_path / "site-packages"
    lock.write_text("# names\nWhole_name==1.0\nother==2.0\ngone==3.0 ; python_version > '3'\n")
    for name in ("whole.name-1.0", "other-2.1"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    found = list(machine.compared("", machine.pinned(lock), machine.installed(site), "make setup"))
    assert one(found, "1 packages are missing", "gone").level == "wrong"
    assert one(found, "not as locked", "other 2.1 for 2.0").level == "warning"
    assert {each.remedy for each in found} == {"make setup"}


def test_the_packages_of_this_checkout_are_as_locked(home: Home) -> None:
    assert [each.level for each in said(home, "packages")] == ["ok"]


def test_whether_programs_can_be_sandboxed_is_told_with_the_package_that_is_missing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = said(home, "sandbox")
    assert found[0].level == "ok" or "apt install" in str(found[0].remedy or found[0].says)
    monkeypatch.setattr(bwrap.shutil, "which", lambda *words, **more: None)
    bwrap.program.cache_clear()
    found = said(home, "sandbox")
    bwrap.program.cache_clear()
    assert found[0].level == "warning" and "bubblewrap" in str(found[0].remedy)


def test_a_home_that_is_not_there_is_a_file_or_is_shut_is_told(tmp_path: Path) -> None:
    found = said(Home(tmp_path / "none"), "home")
    none = one(found, "there is no home")
    assert none.level == "warning" and "flywheel serve, import or turn" in (none.remedy or "")
    (tmp_path / "file").write_text("")
    assert "FLYWHEEL_HOME" in (one(said(Home(tmp_path / "file"), "home"), "no folder").remedy or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_who_may_not_write_the_home_is_told_so() -> None:
    with tempfile.TemporaryDirectory(prefix="flywheel-doctor-") as folder:
        os.chmod(folder, 0o755)
        home = Home(Path(folder, "home"))
        home.inbox.mkdir(parents=True)
        os.chmod(home.root, 0o777)
        (found,) = [each for each in _as_nobody(home) if each["level"] == "wrong"]
    assert "1 file of the home cannot be written by nobody: inbox" in found["says"]
    assert found["remedy"] == f"chown -R nobody {home.root}"


def _as_nobody(home: Home) -> list[dict[str, str]]:
    """What the check says to somebody else, in a fork that is that."""
    nobody = pwd.getpwnam("nobody")
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)
        os.write(writes, msgspec.json.encode(list(machine.home(case(home)))))
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as told:
        found: list[dict[str, str]] = json.loads(told.read())
    os.waitpid(pid, 0)
    return found


def test_the_file_system_of_the_home_is_known() -> None:
    mounts = (
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "30 27 0:30 / /srv rw shared:1 - nfs4 host:/srv rw\n"
        "31 27 0:31 / /srv/my\\040disk rw - xfs /dev/vdb rw\n"
    )
    assert machine.file_system(Path("/home/x"), mounts) == "ext4"
    assert machine.file_system(Path("/srv/x"), mounts) == "nfs4"
    assert machine.file_system(Path("/srv/my disk/x"), mounts) == "xfs"
    (found,) = machine.described("nfs4", Path("/srv/x"))
    assert found.level == "warning" and "locks may not hold" in found.says
    (found,) = machine.described("overlay", Path("/x"))
    assert "volume" in (found.remedy or "")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory here")
def test_a_home_in_memory_is_warned_of() -> None:
    with contextlib.ExitStack() as stack:
        folder = Path("/dev/shm") / f"flywheel-doctor-{os.getpid()}"
        folder.mkdir()
        stack.callback(folder.rmdir)
        assert "FLYWHEEL_HOME" in (one(said(Home(folder), "disk"), "in memory").remedy or "")


def test_a_clock_that_was_set_back_is_seen_by_what_is_in_the_home(home: Home) -> None:
    (found,) = said(home, "clock")
    assert found.level == "ok"
    home.routing.write_text("{}")
    os.utime(home.routing, (time.time() + 86400 * 3,) * 2)
    (found,) = said(home, "clock")
    assert found.level == "wrong" and "3 days before" in found.says and "routing.json" in found.says
    assert "timedatectl" in (found.remedy or "")


def test_a_last_moment_from_the_future_or_from_no_clock_is_told(home: Home) -> None:
    file = home.root / "moment"
    file.write_text(str(time.time_ns() + 3600 * 10**9))
    assert [found.level for found in said(home, "clock")] == ["ok"]
    file.write_text(str(time.time_ns() + 86400 * 10**9 * 30))
    found = one(said(home, "clock"), "the last decision is dated")
    assert found.level == "warning" and str(file) in (found.remedy or "")
    for odd in (str(2**63 - 1), str(10**30), "soon", "-1"):
        file.write_text(odd)
        found = one(said(home, "clock"), str(file))
        assert found.level == "wrong" and str(file) in (found.remedy or "")
    file.unlink()
    file.mkdir()
    assert one(said(home, "clock"), str(file)).level == "wrong"


def test_ports_are_free_ours_or_taken_by_somebody(home: Home, project: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        file = project / "flywheel.toml"
        text = file.read_text()
        file.write_text(text.replace("[serving]", f"[serving]\nport = {port}"))
        found = one(said(home, "ports", project), f"port {port} of sorting")
    # The home of this process is not the one that is looked at.
    assert found.level == "wrong" and f"pid {os.getpid()}" in found.says
    assert "--port 0" in (found.remedy or "")
    assert "is free" in one(said(home, "ports", project), f"port {port} of sorting").says


def listening_child(home: Home, host: str) -> "subprocess.Popen[str]":
    code = (
        "import socket, sys, time\n"
        f"s = socket.socket(); s.bind(({host!r}, 0)); s.listen()\n"
        "print(s.getsockname()[1], flush=True); time.sleep(600)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, "-m", "flows.server"],
        env=surroundings(home.root),
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_of_ours_other_machines_reach_is_told(home: Home) -> None:
    with listening_child(home, "0.0.0.0") as child:
        try:
            assert child.stdout
            port = int(child.stdout.readline())
            found = one(said(home, "exposure"), f"0.0.0.0:{port}")
            assert found.level == "warning" and str(child.pid) in found.says
        finally:
            child.kill()
    assert said(home, "exposure")[0].level == "ok"


def test_a_process_that_outlived_its_parent_is_found(home: Home) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '-m',"
        " 'flows.server'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(child.pid)"
    )
    started = subprocess.run(
        [sys.executable, "-c", code], env=surroundings(home.root), capture_output=True, text=True
    )
    pid = int(started.stdout)
    try:
        found = one(said(home, "processes"), f"pid {pid}")
        assert found.remedy == f"kill {pid}"
    finally:
        os.kill(pid, signal.SIGKILL)


# --- keys and people ---------------------------------------------------------------------------


def test_keys_that_others_can_read_or_that_are_missing_are_told(
    home: Home, project: Path, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("secret\n")
    file.chmod(0o644)
    settings = Settings(home=home.root, api_keys_file=file)
    (told,) = examine(Case(home, settings), {"keys": CHECKS["keys"]})
    assert one(told.findings, "read by others", "644").remedy == f"chmod 600 {file}"
    file.write_text("# none\n")
    (told,) = examine(Case(home, settings), {"keys": CHECKS["keys"]})
    assert told.findings[0].level == "wrong" and "none is there" in told.findings[0].says

    home.keys.write_text("[]")
    assert one(said(home, "keys"), "holds no keys").level == "wrong"
    home.keys.unlink()

    toml = project / "flywheel.toml"
    toml.write_text(toml.read_text().replace("[serving]", '[serving]\nhost = "0.0.0.0"'))
    found = one(said(home, "keys", project), "will not listen on 0.0.0.0")
    assert found.level == "wrong" and "127.0.0.1" in (found.remedy or "")


def test_a_list_of_people_that_cannot_be_read_is_told(home: Home) -> None:
    (home.root / "people.toml").write_text("x\n")
    assert one(said(home, "people"), "people.toml cannot be read").level == "wrong"


# --- projects ----------------------------------------------------------------------------------


@slow
def test_a_project_is_whole_or_told_where_it_is_not(home: Home, project: Path) -> None:
    for name in ("projects", "environments", "models"):
        assert [each.level for each in said(home, name, project)] == ["ok"], name
    known.remember(home, load_project(project))
    file = project / "flywheel.toml"
    file.write_text(file.read_text().replace("[serving]", "[servin]"))
    found = one(said(home, "projects", project), "servin", "did you mean 'serving'")
    assert found.level == "wrong"
    shutil.rmtree(project)
    found = one(said(home, "projects", project), "sorting was last in", "gone")
    assert found.level == "warning" and "sorting.json" in (found.remedy or "")
    found = one(said(home, "projects", project / "never"), "no flywheel.toml")
    assert found.level == "wrong" and "flywheel init" in (found.remedy or "")


def test_vllm_that_is_asked_for_and_not_there_is_told(
    home: Home, project: Path, tmp_path: Path
) -> None:
    file = project / "flywheel.toml"
    asked = '[serving]\nengine = "vllm"\nmax_rank = 4'
    file.write_text(file.read_text().replace("[serving]", asked))
    settings = Settings(home=home.root, vllm=tmp_path / "none")
    (told,) = examine(Case(home, settings, (project,)), {"projects": CHECKS["projects"]})
    found = one(told.findings, "there is none at")
    assert found.level == "wrong" and "make install-vllm" in (found.remedy or "")
    assert "max_rank = 8" in (one(told.findings, "rank 8").remedy or "")


@slow
def test_an_environment_that_does_not_run_or_whose_reward_breaks_is_told(
    home: Home, project: Path
) -> None:
    file = project / "environment.py"
    whole = file.read_text()
    file.write_text("def\n")
    found = one(said(home, "environments", project), "SyntaxError")
    assert found.level == "wrong" and str(file) in (found.remedy or "")
    file.write_text(whole.replace("@reward()", "@reward(truth=False)").replace(
        "return choice", "1 / 0\n        return choice"
    ))  # fmt: skip
    found = one(said(home, "environments", project), "the reward correct fails")
    assert "ZeroDivisionError" in found.says and "mend correct" in (found.remedy or "")


@slow
def test_a_model_that_is_missing_cut_or_without_a_part_is_told(home: Home, project: Path) -> None:
    base = project / "base"
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "another length" in one(said(home, "models", project), "cannot be loaded").says
    weights.write_bytes(b"no safetensors at all")
    assert "cut, or no safetensors" in one(said(home, "models", project), "cannot").says
    weights.unlink()
    assert "no *.safetensors" in one(said(home, "models", project), "cannot").says
    shutil.copy(SORTING / "base" / "model.safetensors", weights)
    (base / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in one(said(home, "models", project), "cannot").says
    (base / "config.json").unlink()
    assert "config.json is missing" in one(said(home, "models", project), "cannot").says
    shutil.rmtree(base)
    assert "make model" in (one(said(home, "models", project), "is not there").remedy or "")


# --- the store ---------------------------------------------------------------------------------


@slow
def test_a_store_opens_is_damaged_or_is_in_use(home: Home, traffic: ModuleType) -> None:
    from storage.committer import commit
    from storage.database import writing

    assert "no store yet" in said(home, "store")[0].says
    deliver(home, traffic, 3)
    assert "2 segments in the inbox" in one(said(home, "inbox"), "segments").says
    commit(home)
    assert one(said(home, "store"), "3 traces of sorting").level == "ok"
    with writing(home, wait_s=5):
        found = one(said(home, "store"), "in use")
    assert found.level == "warning" and f"pid {os.getpid()}" in (found.remedy or "")
    home.database.write_bytes(b"garbage" * 1000)
    found = one(said(home, "store"), "cannot be opened")
    assert found.level == "wrong" and str(home.database) in (found.remedy or "")


def test_a_store_of_other_code_is_told(home: Home, traffic: ModuleType) -> None:
    from storage.committer import commit
    from storage.database import writing

    deliver(home, traffic, 1)
    commit(home)
    with writing(home, wait_s=5) as database:
        database.execute("INSERT INTO migrations VALUES (9999, 'later')")
    found = one(said(home, "store"), "9999", "newer than this program's")
    assert found.level == "wrong" and "up to date" in (found.remedy or "")


def test_what_waits_for_long_is_torn_or_was_not_understood_is_told(
    home: Home, traffic: ModuleType
) -> None:
    from storage.quarantine import quarantine

    deliver(home, traffic, 2)
    old = time.time() - 3 * 86400
    for path in home.inbox.iterdir():
        os.utime(path, (old, old))
    found = one(said(home, "inbox"), "3 days old")
    assert (found.level, found.remedy) == ("warning", "flywheel ingest")
    (home.inbox / "torn.segment").write_bytes(b"no segment")
    assert "quarantine" in (one(said(home, "inbox"), "cannot be read", "torn").remedy or "")
    home.journal.mkdir()
    (home.journal / "one.journal").write_bytes(b"half a li")
    assert "flywheel ingest" in (one(said(home, "inbox"), "1 torn line").remedy or "")
    quarantine(home, "row", b"bytes", "not JSON")
    found = one(said(home, "quarantine"), "1 thing in quarantine", "not JSON")
    assert str(home.quarantine / "row") in (found.remedy or "")


# --- what serves, and what was left ------------------------------------------------------------


def test_a_routing_file_that_is_none_is_told(home: Home) -> None:
    home.routing.write_text("{")
    found = one(said(home, "routing"), "is not a routing file")
    assert found.level == "wrong" and "routing.json.broken" in (found.remedy or "")
    home.routing.write_text('{"version": -5}')
    assert one(said(home, "routing"), "is not a routing file").level == "wrong"


def test_databases_of_mlflow_and_prefect_that_are_none_are_told(home: Home) -> None:
    for name, file in (
        ("registry", home.mlflow / "mlflow.db"),
        ("prefect", home.prefect / "prefect.db"),
    ):
        file.parent.mkdir()
        file.write_bytes(b"garbage")
        found = one(said(home, name), "cannot be used", "not a database")
        assert found.level == "wrong" and f"{file}.broken" in (found.remedy or "")


def test_what_killed_processes_left_is_told_and_what_runs_is_not(home: Home) -> None:
    assert "nothing was left" in said(home, "leftovers")[0].says
    durable.write(home.turns / "sorting.json", json.dumps({"folder": "/where"}).encode())
    durable.write(home.promotions / "sorting.json", b"{")
    (home.promotions / "other.broken").write_text("{")
    for path in (home.root / ".routing.json.x", home.runs / ".writing"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
        os.utime(path, (0, 0))
    (home.prefect / "storage").mkdir(parents=True)
    (home.prefect / "storage" / "2cde7352-train-6c4d26067b3c").write_text("{")
    (home.prefect / "storage" / "27406b4a0d584de7ba36ddc4b32ff9ca").write_text("gAWVXwAAAA==")
    (home.prefect / "server-1999999999").write_text("http://")
    found = said(home, "leftovers")
    assert "flywheel turn /where" in (one(found, "turn of sorting stopped").remedy or "")
    assert "rm " in (one(found, "sorting.json", "no intent").remedy or "")
    assert one(found, "other.broken", "set aside")
    assert "3 temporary files" in one(found, "temporary").says
    assert one(found, "1 torn result")
    home.locks.mkdir()
    with (home.locks / "turn-sorting.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not any("turn of sorting" in each.says for each in said(home, "leftovers"))


def test_a_server_that_is_gone_is_told(home: Home) -> None:
    from serving.presence import announce

    announce(home, "http://127.0.0.1:1", "http://127.0.0.1:1", frozenset({"sorting"}))
    found = said(home, "server")
    assert one(found, "does not answer").level == "wrong"
    assert one(said(home, "engine"), "did not answer").level == "wrong"
    record = json.loads(home.server.read_bytes())
    home.server.write_text(json.dumps({**record, "pid": 1999999999}))
    found = one(said(home, "server"), "ended without saying so")
    assert found.level == "warning" and "flywheel serve" in (found.remedy or "")


# --- the command -------------------------------------------------------------------------------


def test_the_command_works_where_nothing_is_and_makes_nothing(
    flywheel: Flywheel, tmp_path: Path
) -> None:
    looked = flywheel("doctor", "--json")
    assert looked.code == 0, looked
    found = looked.object()
    assert found["worst"] == "warning" and found["home"] == str(tmp_path / "home")
    told = {each["check"] for each in found["findings"]}
    assert set(CHECKS) - told == {"environments", "models"}, "which need a project"
    assert not (tmp_path / "home").exists()


@slow
def test_the_command_says_what_is_wrong_with_its_remedy_and_ends_with_one(
    flywheel: Flywheel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "routing.json").write_text("{")
    looked = flywheel("doctor", tmp_path / "none", FLYWHEEL_THREADS="many", home=home)
    assert looked.code == 1
    for words in ("FLYWHEEL_THREADS", "no flywheel.toml", "not a routing file", "-> mv ", "wrong"):
        assert words in looked.out, words
    assert "Traceback" not in looked.out + looked.err


@slow
def test_names_that_are_no_utf_8_and_a_home_that_is_a_file_are_told(
    flywheel: Flywheel, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    looked = flywheel("doctor", os.fsdecode(b"od\xffd"), "--json", home=file)
    assert looked.code == 1
    says = [each["says"] for each in looked.object()["findings"]]
    assert any("od\\udcffd" in each for each in says)
    assert not any("itself failed" in each for each in says), says


# --- a whole home ------------------------------------------------------------------------------


def contents(root: Path) -> dict[str, str]:
    """Of every file but SQLite's index for readers."""
    return {
        str(path.relative_to(root)): hashlib.md5(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


@slow
def test_a_home_that_is_well_is_said_to_be_and_is_left_as_it_was(
    flywheel: Flywheel, promoted: Promoted, promoted_home: Path
) -> None:
    before = contents(promoted_home)
    looked = flywheel("doctor", "--json", "--deep", home=promoted_home)
    found = looked.object()
    unwell = [each for each in found["findings"] if each["level"] != "ok"]
    # The copy's registry names the artifacts of the home that it was copied from, which are there.
    assert looked.code == 0 and not [each for each in unwell if each["check"] != "ports"], unwell
    says = " | ".join(each["says"] for each in found["findings"])
    for words in (
        "sorting-v1 (champion): its weights are what was trained",
        "MLflow's aliases are what serves",
        "MLflow itself says the same",
        "the ledger agrees: promoted by",
        "160 traces of sorting",
        "rewards on an example: correct 1",
        "loads; digest",
    ):
        assert words in says, words
    assert contents(promoted_home) == before


@slow
def test_a_registry_or_weights_that_are_not_what_serves_are_told(
    promoted: Promoted, promoted_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving import routing
    from serving.registry import Registry

    home = Home(promoted_home)
    monkeypatch.setenv("FLYWHEEL_HOME", str(home.root))
    Registry(home).set_aliases("sorting", {"champion": None})
    found = one(said(home, "registry"), "champion none", "champion 1")
    assert found.level == "warning" and "flywheel serve" in (found.remedy or "")

    now = routing.read(home)
    route = now.projects["sorting"]
    base = routing.base_deployment("sorting", route.base_model)
    swapped = msgspec.structs.replace(route, champion=base, previous=route.champion)
    routing.replace(home, msgspec.structs.replace(now, projects={"sorting": swapped}))
    found = one(said(home, "registry"), "made sorting-v1 champion", "sorting-v0 serves")
    assert "writes down" in (found.remedy or "")

    assert route.champion.adapter
    weights = home.path(route.champion.adapter) / "adapter_model.safetensors"
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    found = one(said(home, "routing"), "sorting-v1 (previous)", "changed on disk")
    assert found.level == "warning" and "nothing to roll back to" in (found.remedy or "")
    now = routing.read(home)
    routing.replace(home, msgspec.structs.replace(now, projects={"sorting": route}))
    found = one(said(home, "routing"), "sorting-v1 (champion)", "changed on disk")
    assert found.level == "wrong" and "flywheel rollback" in (found.remedy or "")


@slow
def test_versions_whose_files_are_gone_and_homes_that_were_moved_are_told(
    promoted_home: Path,
) -> None:
    home = Home(promoted_home)
    assert not [each for each in said(home, "registry") if each.level != "ok"]
    with sqlite3.connect(home.mlflow / "mlflow.db") as database:
        database.execute(
            "UPDATE model_versions SET storage_location = "
            "replace(storage_location, '/artifacts/', '/elsewhere/')"
        )
    found = one(said(home, "registry"), "files of 1 version", "are gone")
    assert found.level == "warning" and "put a copy back" in (found.remedy or "")


@slow
def test_a_running_server_its_engine_and_what_it_leaves_when_killed(
    promoted: Promoted, promoted_home: Path
) -> None:
    home = Home(promoted_home)
    with subprocess.Popen(
        [*FLYWHEEL, "serve", str(promoted.project), "--port", "0", "--json"],
        env=surroundings(promoted_home),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            served = json.loads(process.stdout.readline())
            assert one(said(home, "server"), "the gateway is ready").level == "ok"
            found = said(home, "engine")
            assert "sorting-v1" in one(found, "answers; it has").says
            assert one(found, "token ids and logprobs come").level == "ok"
            assert [each.level for each in said(home, "processes")] == ["ok"]
            assert served["pid"] == process.pid
        finally:
            process.kill()
    assert one(said(home, "server"), "ended without saying so").level == "warning"

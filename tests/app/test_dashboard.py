"""`flywheel dashboard` and the frame: who gets in, from where, and that nothing is left behind."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import dashboard_server
from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.known import remember
from flywheel.project import load_project
from tests.app.calling import FLYWHEEL, ROOT, call, surroundings
from tests.app.conftest import SORTING
from tests.app.seeing import stored
from tests.storage.store_parts import spoken


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    place = Home(tmp_path / "home")
    place.root.mkdir()
    monkeypatch.setenv("FLYWHEEL_HOME", str(place.root))
    return place


@pytest.fixture
def on_loopback() -> Iterator[None]:
    from streamlit import config

    before = config.get_option("server.address")
    config._set_option("server.address", "127.0.0.1", "a test")
    yield
    config._set_option("server.address", before, "a test")


def frame(**query: str) -> AppTest:
    shown = AppTest.from_file(str(ROOT / "app" / "dashboard.py"), default_timeout=240)
    for name, value in query.items():
        shown.query_params[name] = value
    shown.run()
    assert not shown.exception, shown.exception[0].message
    return shown


def sidebar(shown: AppTest) -> str:
    return " ".join(one.value for one in [*shown.sidebar.caption, *shown.error])


def test_streamlit_started_by_hand_for_all_to_reach_shows_nothing(home: Home) -> None:
    shown = frame()
    assert "listens beyond this machine" in shown.error[0].value
    assert not shown.sidebar.text_input


@pytest.mark.usefixtures("on_loopback")
def test_a_typed_name_on_this_machine_may_everything_and_the_page_says_so(home: Home) -> None:
    shown = frame(**{"as": "Ann"})
    assert shown.sidebar.text_input[0].value == "Ann"
    assert "Everybody on this machine may do everything" in sidebar(shown)
    (home.root / "people.toml").write_text('[people]\nann = "reviewer"\n')
    assert "Role: reviewer" in sidebar(shown.run())
    shown.sidebar.text_input[0].set_value("Zoe").run()
    assert "Role: viewer" in sidebar(shown)
    (home.root / "people.toml").write_text("[people\n")
    assert "cannot be read" in sidebar(shown.run())


@pytest.mark.usefixtures("on_loopback")
def test_projects_come_from_commands_and_traces_and_a_link_chooses(home: Home) -> None:
    stored(home, [spoken("a", project="beta"), spoken("b", project="alpha")])
    remember(home, load_project(SORTING))
    shown = frame(project="beta")
    assert shown.sidebar.selectbox[0].options == ["alpha", "beta", "sorting"]
    assert shown.sidebar.selectbox[0].value == "beta"
    assert frame(project="nothing of ours").sidebar.selectbox[0].value == "alpha"


def test_only_this_machine_reaches_it_without_a_sign_in(home: Home, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with (
            pytest.raises(UsageError, match="configure a sign-in"),
            dashboard_server.start(home, host, 0, tmp_path),
        ):
            pass
    file = home.root / ".streamlit" / "secrets.toml"
    file.parent.mkdir()
    file.write_text('[auth]\nredirect_uri = "https://flywheel.example.org/oauth2callback"\n')
    with pytest.raises(UsageError, match="lacks cookie_secret"):
        dashboard_server.sign_in([file])
    file.write_text("[auth")
    with pytest.raises(UsageError, match="cannot be read"):
        dashboard_server.sign_in([file])
    assert dashboard_server.sign_in([tmp_path / "none.toml"]) is None


def test_every_option_that_matters_is_ours() -> None:
    from streamlit import config

    config.get_config_options()
    given = dashboard_server.options("127.0.0.1", 1, [], ["localhost"])
    known = {name.replace(".", "_") for name in config._config_options or {}}
    assert set(given) <= known
    assert given["browser_gatherUsageStats"] is False and given["server_enableXsrfProtection"]
    assert given["server_fileWatcherType"] == "none" and given["server_headless"]


def started(home: Home, *more: str, **environment: str) -> tuple["subprocess.Popen[str]", Any]:
    running = subprocess.Popen(
        [*FLYWHEEL, "dashboard", "--port", "0", "--json", *more], stdout=subprocess.PIPE, text=True,
        env=surroundings(home.root, **environment), cwd=home.root.parent,
    )  # fmt: skip
    assert running.stdout is not None
    return running, json.loads(running.stdout.readline())


def gone(pid: int, url: str) -> bool:
    """Whether the process and its port are gone, within some seconds."""
    port = int(url.rsplit(":", 1)[1])
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.socket() as free:
            alive = Path(f"/proc/{pid}/cmdline")
            running = alive.exists() and b"dashboard_server" in alive.read_bytes()
            if not running and free.connect_ex(("127.0.0.1", port)):
                return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_it_starts_answers_and_leaves_nothing_however_it_ends(home: Home) -> None:
    running, said = started(home, str(SORTING))
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert b"Streamlit" in direct.open(said["url"], timeout=20).read(500)
        assert (home.projects / "sorting.json").exists()
        taken = call("dashboard", "--port", said["url"].rsplit(":", 1)[1], "--json", home=home.root)
        assert taken.code == 1 and "choose another port" in taken.object()["error"]
    finally:
        running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=30) == 0
    assert running.stdout is not None and running.stdout.read() == "", "one object, no more"
    assert gone(said["pid"], said["url"])
    # A script's shell sets SIGINT to be ignored in what it starts in the background.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        running, said = started(home)
    finally:
        signal.signal(signal.SIGINT, before)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=30) == 0 and gone(said["pid"], said["url"])
    running, said = started(home)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert gone(said["pid"], said["url"])


@pytest.mark.slow
def test_wrong_calls_are_told(home: Home) -> None:
    refused = call("dashboard", "--host", "0.0.0.0", "--json", home=home.root)
    assert refused.code == 2 and "sign-in" in refused.object()["error"]
    missing = call("dashboard", "nowhere", "--json", home=home.root)
    assert missing.code == 2 and "no flywheel.toml" in missing.object()["error"]

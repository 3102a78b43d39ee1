"""One promoted home for all tests of the commands, made by the commands themselves."""

import functools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.app.calling import ROOT, Said, call, surroundings
from tests.promoted import SORTING as SORTING
from tests.promoted import Promoted, load_traffic
from tests.promoted import deliver as deliver
from tests.promoted import promoted_home as promoted_of


@pytest.fixture(autouse=True, scope="session")
def installed_once() -> Iterator[None]:
    """Streamlit's AppTest looks for components in all that is installed, for each page anew: a
    third of what a test of a page costs. What is installed stays as it is while tests run."""
    with pytest.MonkeyPatch.context() as patch:
        if "streamlit.testing.v1" in sys.modules:
            from streamlit.components.v2 import manifest_scanner as scanner

            found = functools.cache(scanner.scan_component_manifests)
            patch.setattr(scanner, "scan_component_manifests", found)
        yield


@pytest.fixture
def flywheel(tmp_path: Path) -> Callable[..., Said]:
    """Calls the command with a home in tmp_path: `flywheel("status", "--json")`."""

    def calling(*arguments: object, home: Path = tmp_path / "home", **more: Any) -> Said:
        return call(*arguments, home=home, **more)

    return calling


@pytest.fixture(scope="session")
def traffic() -> ModuleType:
    return load_traffic()


@pytest.fixture(scope="session")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Promoted:
    """A home whose project was turned once, by the command, and promoted."""
    return promoted_of(tmp_path_factory)


@pytest.fixture(scope="session")
def prefect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """PREFECT_API_URL for commands whose own server, which takes seconds to start, is not what is
    looked at; where a command has one of its own: `promoted`, and turns that are stopped."""
    place = tmp_path_factory.mktemp("prefect")
    said, log = place / "url", place / "log"
    with log.open("wb") as errors:
        server = subprocess.Popen(
            [sys.executable, "-m", "flows.server", "--said", str(said)],
            env=surroundings(place / "home", PREFECT_HOME=str(place / "prefect")),
            cwd=ROOT,
            stderr=errors,
        )
    try:
        while not said.exists():
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        yield said.read_text()
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def promoted_home(promoted: Promoted, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    assert promoted.turned.code == 0, promoted.turned
    shutil.copytree(promoted.home, tmp_path / "home")
    return tmp_path / "home"

"""One promoted home for all tests of the commands, made by the commands themselves."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from flywheel.home import Home
from tests.app.calling import ROOT, Said, call

SORTING = ROOT / "tests" / "sorting"


class Promoted(NamedTuple):
    home: Path
    project: Path
    turned: Said
    """What `flywheel turn --json` said."""


@pytest.fixture
def flywheel(tmp_path: Path) -> Callable[..., Said]:
    """Calls the command with a home in tmp_path: `flywheel("status", "--json")`."""

    def calling(*arguments: object, home: Path = tmp_path / "home", **more: Any) -> Said:
        return call(*arguments, home=home, **more)

    return calling


@pytest.fixture(scope="session")
def traffic() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sorting_traffic", SORTING / "traffic.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def deliver(home: Home, traffic: ModuleType, count: int) -> None:
    """Traffic and feedback as the gateway would have recorded them."""
    from storage.inbox import Inbox

    asks = traffic.asks(count)
    Inbox(home).append(traffic.recorded("sorting", asks, "sorting-v0"))
    Inbox(home).append(traffic.feedback("sorting", asks))


@pytest.fixture(scope="session")
def promoted(tmp_path_factory: pytest.TempPathFactory, traffic: ModuleType) -> Promoted:
    """A home whose project was turned once, by the command, and promoted."""
    place = tmp_path_factory.mktemp("promoted")
    project, home = place / "sorting", Home(place / "home")
    shutil.copytree(SORTING, project)
    home.root.mkdir()
    deliver(home, traffic, 160)
    return Promoted(home.root, project, call("turn", project, "--json", home=home.root))


@pytest.fixture
def promoted_home(promoted: Promoted, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    assert promoted.turned.code == 0, promoted.turned
    shutil.copytree(promoted.home, tmp_path / "home")
    return tmp_path / "home"

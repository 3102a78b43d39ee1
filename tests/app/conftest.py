"""One promoted home for all tests of the commands, made by the commands themselves."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.app.calling import Said, call
from tests.promoted import SORTING as SORTING
from tests.promoted import Promoted, load_traffic
from tests.promoted import deliver as deliver
from tests.promoted import promoted_home as promoted_of


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


@pytest.fixture
def promoted_home(promoted: Promoted, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    assert promoted.turned.code == 0, promoted.turned
    shutil.copytree(promoted.home, tmp_path / "home")
    return tmp_path / "home"

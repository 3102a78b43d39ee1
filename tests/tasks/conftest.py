"""A home for each test, and one server for all that sample, on the tiny model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel.home import Home
from flywheel.settings import Settings
from tests.tasks.sampling import write_project


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty one, as the one of this process."""
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    place = Settings().at()
    place.root.mkdir()
    return place


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home whose server answers for one project, and for whoever has the same base model."""
    from serving.server import ensure

    root = tmp_path_factory.mktemp("served")
    home = Home(root / "home")
    home.root.mkdir()
    settings = Settings(home=home.root, threads=1)
    with ensure(home, write_project(root / "served", "served", ""), settings):
        yield home


@pytest.fixture
def sampling_home(served: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """That home, as the one of this process."""
    monkeypatch.setenv("FLYWHEEL_HOME", str(served.root))
    monkeypatch.setenv("FLYWHEEL_THREADS", "1")
    return served

"""One Prefect server for all flow tests, and small homes with traffic in them."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from flywheel.home import Home
from flywheel.settings import Settings, quiet_dependencies

SORTING = Path(__file__).resolve().parents[1] / "sorting"


def load_traffic() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sorting_traffic", SORTING / "traffic.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prefect server; its URL."""
    place = Home(tmp_path_factory.mktemp("prefect"))
    place.prefect.mkdir()
    os.environ["PREFECT_LOGGING_LEVEL"] = "ERROR"
    quiet_dependencies(place)
    from prefect.settings import PREFECT_API_URL
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield str(PREFECT_API_URL.value())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLYWHEEL_THREADS", "1")
    place = Settings().at()
    place.root.mkdir()
    return place


@pytest.fixture
def project_folder(tmp_path: Path) -> Path:
    """A copy of the sorting project, so that a test may change its file."""
    folder = tmp_path / "sorting"
    folder.mkdir()
    for name in ("flywheel.toml", "environment.py"):
        (folder / name).write_bytes((SORTING / name).read_bytes())
    (folder / "base").symlink_to(SORTING / "base")
    return folder


@pytest.fixture(scope="session")
def traffic() -> ModuleType:
    return load_traffic()

"""For all tests: quiet dependencies before anything imports them, and no home of the person's.
Whoever asks for slow tests alone imports no file without one."""

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from flywheel.home import Home
from flywheel.settings import quiet_dependencies

_home = Home(Path(tempfile.mkdtemp(prefix="flywheel-tests-")))
_home.prefect.mkdir()
os.environ["FLYWHEEL_HOME"] = str(_home.root)
quiet_dependencies(_home)
atexit.register(shutil.rmtree, _home.root, ignore_errors=True)

# A suite that is run in the background inherits an ignored Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    tier = config.option.markexpr.partition(" ")[0]
    if tier not in ("slow", "soak") or not collection_path.match("test_*.py"):
        return None
    return None if _names(collection_path, tier) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raises: pytest.UsageError: a file has a slow test that the above would leave out."""
    for tier in ("slow", "soak"):
        for path in {item.path for item in items if item.get_closest_marker(tier)}:
            if not _names(path, tier):
                raise pytest.UsageError(f"{path} has a test of {tier} and never says mark.{tier}")


def _names(path: Path, tier: str) -> bool:
    return f"mark.{tier}" in path.read_text()

"""A home of its own for each test of the store."""

from pathlib import Path

import pytest

from flywheel.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")

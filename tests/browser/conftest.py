"""One Chromium for all tests of pages; they are skipped where there is none, unless it is demanded
by FLYWHEEL_TEST_BROWSER=1."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, program


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if program() is None and os.environ.get("FLYWHEEL_TEST_BROWSER") != "1":
        pytest.skip("no Chromium on the PATH: apt-get install chromium brings it")
    running = Browser(Path(tmp_path_factory.mktemp("chromium")))
    try:
        yield running
    finally:
        running.close()

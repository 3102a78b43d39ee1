"""One Chromium, and one lived-in home with its dashboard, for all tests of pages.

They are skipped where there is no Chromium, unless it is demanded by FLYWHEEL_TEST_BROWSER=1.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, program
from tests.browser.lived import Lived, lived
from tests.promoted import promoted_home


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if program() is None and os.environ.get("FLYWHEEL_TEST_BROWSER") != "1":
        pytest.skip("no Chromium on the PATH: apt-get install chromium brings it")
    running = Browser(Path(tmp_path_factory.mktemp("chromium")))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def dashboard(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """Asked for after `browser`, so that nothing is started where that is skipped."""
    with lived(promoted_home(tmp_path_factory), tmp_path_factory.mktemp("lived")) as there:
        yield there

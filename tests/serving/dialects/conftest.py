"""One gateway a file: what these tests record, they read as the last."""

from collections.abc import Iterator

import pytest

from tests.serving.running import Running, running
from tests.serving.scripted_upstream import Upstream, upstream


@pytest.fixture(scope="module")
def engine() -> Iterator[Upstream]:
    with upstream() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, engine: Upstream) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("home"), engine.url) as up:
        yield up

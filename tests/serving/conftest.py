"""What most gateways of the tests stand before: a scripted engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.running import Running, running
from tests.serving.scripted_upstream import Upstream, upstream


@pytest.fixture
def engine() -> Iterator[Upstream]:
    with upstream() as scripted:
        yield scripted


@pytest.fixture
def gateway(tmp_path: Path, engine: Upstream) -> Iterator[Running]:
    with running(tmp_path, engine.url) as up:
        yield up

"""Several equal engines as one: what is scripted is what they answer, not how they are kept."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from flywheel.errors import EngineError
from flywheel.home import Home
from flywheel.serving_section import ServingSection
from flywheel.settings import Secret, Settings
from serving.engines.client import EngineClient
from serving.engines.fleet import Fleet
from serving.engines.process import EngineProcess
from serving.engines.remote import RemoteVllm
from serving.engines.table import ENGINES
from serving.engines.vllm import VllmProcess
from tests.serving.running import body, running
from tests.serving.scripted_server import ScriptedEngine


def until(there: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    home = Home(tmp_path)
    found = Fleet([ScriptedEngine(home, Path()) for _ in range(2)], again_s=0.1)
    found.start()
    yield found
    found.stop()


@pytest.mark.slow
def test_what_is_loaded_is_loaded_in_each_and_one_that_dies_interrupts_nobody(
    fleet: Fleet, tmp_path: Path
) -> None:
    first, second = fleet.engines
    assert fleet.urls == (first.url, second.url) and fleet.alive and fleet.ready()
    with EngineClient(fleet.url, access=fleet.access) as client:
        client.load_adapter("support-v1", tmp_path)
        with client.each() as engines:
            assert [one.url for one in engines] == [first.url, second.url]
            assert all("support-v1" in one.models() for one in engines)
    restarts = fleet.restarts
    with running(tmp_path / "gateway", "") as gateway:
        gateway.gateway.upstream.point_to(fleet.urls)
        answered = Counter[int]()
        assert isinstance(first, EngineProcess) and first.pid
        for number in range(30):
            if number == 10:
                os.kill(first.pid, signal.SIGKILL)
            url = gateway.url + "/v1/chat/completions"
            answered[httpx.post(url, content=body(f"question {number}")).status_code] += 1
        assert answered == {200: 30}
    until(lambda: first.restarts == 1 and len(fleet.urls) == 2)
    assert fleet.restarts == restarts, "the other one served all the while"


@pytest.mark.slow
def test_one_that_is_away_at_the_start_joins_later_and_with_none_there_is_no_fleet(
    tmp_path: Path,
) -> None:
    class Late(ScriptedEngine):
        tries = 0

        def start(self) -> None:
            self.tries += 1
            if self.tries < 3:
                raise EngineError("not there yet")
            super().start()

    home = Home(tmp_path)
    late = Late(home, Path())
    fleet = Fleet([late, ScriptedEngine(home, Path())], again_s=0.05)
    fleet.start()
    try:
        assert fleet.url == fleet.engines[1].url
        until(lambda: len(fleet.urls) == 2)
    finally:
        fleet.stop()
    assert not fleet.alive
    never = Late(home, Path())
    with pytest.raises(EngineError, match="not there yet"):
        Fleet([never]).start()


def test_a_project_gets_as_many_engines_as_it_names(tmp_path: Path) -> None:
    home, vllm = Home(tmp_path), tmp_path / "vllm"
    (vllm / "bin").mkdir(parents=True)
    (vllm / "bin" / "python").touch()
    settings = Settings(vllm=vllm, engine_key=Secret("k"))
    two = ENGINES["embedded"](home, tmp_path, ServingSection(replicas=2), settings, dict)
    assert isinstance(two, Fleet) and len({one.url for one in two.engines}) == 2
    urls = ServingSection(engine="vllm", engine_urls=("http://a:1/v1", "http://b:1"))
    remote = ENGINES["vllm"](home, tmp_path, urls, settings, dict)
    assert isinstance(remote, Fleet)
    assert all(isinstance(one, RemoteVllm) for one in remote.engines)
    assert [one.url for one in remote.access.replicas] == ["http://a:1", "http://b:1"]
    section = ServingSection(engine="vllm", replicas=2)
    own = ENGINES["vllm"](home, tmp_path, section, settings, dict)
    assert isinstance(own, Fleet) and all(isinstance(one, VllmProcess) for one in own.engines)
    keys = {one.access.key for one in own.engines}
    copies = {one.copies for one in own.access.replicas}
    assert len(keys) == 1 and len(copies) == 2, "one key for the gateway, files for each"

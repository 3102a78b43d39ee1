"""What an engine must serve, after every start: loaded, checked, and told where it is not. With
children that do as a test bids them; the real engines: test_process.py and test_vllm.py."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from flywheel import children
from flywheel.errors import EngineError, Refused
from flywheel.home import Home
from flywheel.lineage import Deployment
from serving import routing
from serving.engines import supervised
from serving.engines.client import EngineClient
from serving.engines.load import Load
from serving.engines.loading import DEATHS, CheckedHost
from serving.engines.supervised import Adapters, Supervised
from serving.keeper import Keeper, adapters_of
from serving.metrics import Metrics
from serving.state import EngineState
from serving.verify import FLOAT32, Probe, ProbeEntry
from trainer.models import digest_of


class Scripted(Supervised):
    """Of which each test has one; what it is started with stands in `starts`."""

    def __init__(self, home: Home, adapters: Adapters) -> None:
        super().__init__(home, home.root, adapters=adapters, ready_s=60)
        self.starts = 0

    def _spawn(self) -> "subprocess.Popen[bytes]":
        self.starts += 1
        name = "tests.serving.engines.scripted_child"
        return children.start(name, [str(self.port)], log=self.log)


def trained(home: Home, run: str, says: float = -2.0, *, moved: float = 1.0) -> Path:
    """An adapter of that run, and the probe of what it was trained to say."""
    folder = home.runs / run / "adapter"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_text(str(says))
    entry = ProbeEntry(
        prompt_ids=(1, 2), completion_ids=(3, 4), new=(says,) * 2, old=(says + moved,) * 2
    )
    (folder.parent / "probe.json").write_bytes(msgspec.json.encode(Probe(entries=(entry,))))
    return folder


def spoil(folder: Path, text: str = "-2.4") -> None:
    (folder / "adapter_model.safetensors").write_text(text)


def wait_for(what: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(supervised, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(supervised, "MEND_S", 0.2)
    return Home(tmp_path)


@pytest.fixture
def started(home: Home) -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def start(adapters: dict[str, Path] | Adapters) -> Scripted:
        engine = Scripted(home, adapters if callable(adapters) else lambda: adapters)
        made.append(engine)
        engine.start()
        return engine

    yield start
    for engine in made:
        engine.stop()


def served(engine: Supervised) -> list[str]:
    with engine.client() as client:
        return sorted(set(client.models()) - {"base"})


def kill(engine: Supervised) -> None:
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)


def test_weights_that_are_not_what_was_trained_are_unloaded_and_the_others_serve(
    home: Home, started: Callable[..., Scripted]
) -> None:
    adapters = {name: trained(home, name) for name in ("v1", "v2", "v3", "v4")}
    spoil(adapters["v2"])
    (adapters["v3"].parent / "probe.json").write_text("{")
    (adapters["v4"] / "adapter_model.safetensors").unlink()
    engine = started(adapters)
    assert engine.settled and served(engine) == ["v1"]
    assert "not what was trained: a logprob differs" in engine.lacking["v2"]
    assert "is not a probe file" in engine.lacking["v3"]
    assert "adapter v4 was not loaded" in engine.lacking["v4"]
    assert engine.last_error is not None and "v3: " in engine.last_error


def test_after_each_start_they_are_checked_anew(
    home: Home, started: Callable[..., Scripted]
) -> None:
    """Files that an attacker, or a disk, changed while the engine held the right ones."""
    adapters = {"v1": trained(home, "v1"), "v2": trained(home, "v2", -3.0)}
    engine = started(adapters)
    assert served(engine) == ["v1", "v2"] and not engine.lacking
    spoil(adapters["v1"], "-3.0")  # another one's, whole and sound
    kill(engine)
    wait_for(lambda: engine.starts == 2 and engine.settled)
    assert served(engine) == ["v2"] and "v1" in engine.lacking
    spoil(adapters["v1"], "-2.0")
    wait_for(lambda: not engine.lacking)  # what is right again is served again
    assert served(engine) == ["v1", "v2"] and engine.last_error is None and engine.starts == 2


@pytest.mark.slow
def test_killed_again_and_again_while_it_loads_it_comes_back_whole(
    home: Home, started: Callable[..., Scripted]
) -> None:
    """At each place between its start and the last check."""
    adapters = {"v1": trained(home, "v1"), "v2": trained(home, "v2")}
    kills = iter([None, 0, 1, 2, 3])

    def asked() -> dict[str, Path]:
        place = next(kills, None)
        if place is not None and engine.pid is not None:
            kill(engine) if place == 0 else kill_at(place)
        return adapters

    def kill_at(place: int) -> None:
        """Once so many more requests were sent."""
        left, send = [place], EngineClient._send

        def sent(self: EngineClient, *args: object, **named: object) -> object:
            left[0] -= 1
            if left[0] == 0 and engine.pid is not None:
                kill(engine)
            return send(self, *args, **named)  # type: ignore[arg-type]

        patch.setattr(EngineClient, "_send", sent)

    with pytest.MonkeyPatch.context() as patch:
        engine = Scripted(home, asked)
        engine.start()
        try:
            kill(engine)
            wait_for(lambda: engine.starts >= 6 and engine.settled)
            assert served(engine) == ["v1", "v2"] and not engine.lacking
            assert engine.last_error is None
        finally:
            engine.stop()


@pytest.mark.slow
def test_weights_over_which_it_ends_are_left_out_after_a_few_starts(
    home: Home, started: Callable[..., Scripted]
) -> None:
    adapters = {"v1": trained(home, "v1")}
    engine = started(adapters)
    poison = trained(home, "poison")
    spoil(poison, "dies")
    adapters |= {"v0": poison, "v2": trained(home, "v2")}
    kill(engine)
    wait_for(lambda: engine.settled and engine.starts == 1 + DEATHS + 1)
    assert served(engine) == ["v1", "v2"]
    assert f"ended {DEATHS} times in a row" in engine.lacking["v0"]


def test_a_first_start_goes_without_them_too(home: Home, started: Callable[..., Scripted]) -> None:
    poison = trained(home, "poison")
    spoil(poison, "dies")
    engine = started({"v0": poison, "v1": trained(home, "v1")})
    assert engine.starts == DEATHS + 1 and served(engine) == ["v1"]


def test_what_cannot_be_launched_is_tried_after_longer_and_longer_pauses(
    home: Home, started: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk without room for the log, say."""
    engine = started({"v1": trained(home, "v1")})
    pauses: list[float] = []
    wait, spawn = engine._stopping.wait, engine._spawn
    full = True

    def waited(seconds: float | None = None) -> bool:
        pauses.append(seconds or 0.0)
        return wait(0)

    def no_room() -> "subprocess.Popen[bytes]":
        if full and len(pauses) < 12:
            raise OSError(28, "No space left on device")
        return spawn()

    monkeypatch.setattr(engine._stopping, "wait", waited)
    monkeypatch.setattr(engine, "_spawn", no_room)
    kill(engine)
    wait_for(lambda: engine.settled and engine.starts == 2)
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4] and max(pauses) == supervised._LONGEST_PAUSE_S
    assert served(engine) == ["v1"] and engine.last_error is None


def test_nobody_is_answered_before_the_champion_was_checked_again(
    home: Home, started: Callable[..., Scripted]
) -> None:
    """The state that the gateway goes by, from a kill to the last check."""
    import asyncio

    folder = trained(home, "v1")
    champion = Deployment(
        name="shop-v1", project="shop", version=1, base_model="base",
        adapter=str(folder), checkpoint_id=digest_of(folder),
    )  # fmt: skip
    route = routing.ProjectRoute(project="shop", base_model="base", champion=champion)
    routing.replace(home, msgspec.structs.replace(routing.Routing(), projects={"shop": route}))
    names, state = frozenset({"shop"}), EngineState()
    engine = started(lambda: adapters_of(home, names))
    keeper = Keeper(home, names, engine, state)
    engine.loading.lacking = {"shop-v1": "it is being checked"}
    asyncio.run(keeper._look())
    assert state.phase == "restarting", "loaded is not checked"
    engine.loading.lacking = {}
    asyncio.run(keeper._look())
    assert state.phase == "ready"
    engine._settled = False
    asyncio.run(keeper._look())
    assert state.phase == "restarting"
    spoil(folder)
    kill(engine)
    wait_for(lambda: engine.settled and engine.starts == 2)
    asyncio.run(keeper._look())
    assert state.phase == "restarting"
    assert state.reason is not None and "changed on disk" in state.reason


def test_whoever_changes_what_serves_gets_only_what_was_checked(
    home: Home, started: Callable[..., Scripted]
) -> None:
    adapters = {name: trained(home, name) for name in ("v1", "v2")}
    engine = started({"v1": adapters["v1"]})
    with engine.client() as client:
        host = CheckedHost(client, FLOAT32)
        host.load_adapter("v1", adapters["v1"])
        host.load_adapter("v2", adapters["v2"])
        assert served(engine) == ["v1", "v2"]
        host.unload_adapter("v2")
        spoil(adapters["v2"])
        with pytest.raises(Refused, match="not what was trained"):
            host.load_adapter("v2", adapters["v2"])
        assert served(engine) == ["v1"]
        engine.stop()
        with pytest.raises(EngineError):
            host.load_adapter("v2", adapters["v2"])


def test_how_the_engine_stands_is_told_and_what_it_does_not_say_is_unknown(tmp_path: Path) -> None:
    metrics, state = Metrics(), EngineState(phase="ready", lacking={"shop-v1": "changed on disk"})
    metrics.engine(state)
    text = metrics.text()
    assert "flywheel_engine_lacking 1.0" in text and "flywheel_engine_cache_use NaN" in text
    state.load = Load(running=3, waiting=2, cache_use=0.5)
    metrics.engine(state)
    text = metrics.text()
    for name, value in (("requests_running", 3.0), ("requests_waiting", 2.0), ("cache_use", 0.5)):
        assert f"flywheel_engine_{name} {value}" in text

"""The engine as a child: it comes back with its adapters, keeps its URL, and never outlives us."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from flywheel.errors import EngineError, Refused
from flywheel.home import Home
from serving.engines.client import EngineClient
from serving.engines.process import EngineProcess

pytestmark = pytest.mark.slow
TINY = Path(__file__).resolve().parents[2] / "sorting" / "base"
ROOT = Path(__file__).resolve().parents[3]


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_killed_engine_comes_back_with_its_adapters_at_the_same_url(
    engine: EngineProcess, client: EngineClient
) -> None:
    before, url, restarts = engine.pid, engine.url, engine.restarts
    expected = client.logprobs("tiny-v1", [1, 40, 41], [42, 43])
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: engine.restarts > restarts and engine.pid not in (None, before))
    client.wait_ready(60)
    wait_for(lambda: {"tiny-v1", "tiny-v2"} <= set(client.models()))
    assert (engine.url, engine.last_error) == (url, None)
    assert client.logprobs("tiny-v1", [1, 40, 41], [42, 43]) == expected


def test_an_adapter_comes_and_goes_under_load(
    client: EngineClient, adapters: dict[str, Path]
) -> None:
    client.load_adapter("tiny-v3", adapters["tiny-v3"])
    client.load_adapter("tiny-v3", adapters["tiny-v3"])
    assert client.models() == ["base", "tiny-v1", "tiny-v2", "tiny-v3"]
    with pytest.raises(Refused, match="new name"):
        client.load_adapter("tiny-v3", adapters["tiny-v1"])
    client.unload_adapter("tiny-v3")
    client.unload_adapter("tiny-v3")
    assert "tiny-v3" not in client.models()
    with pytest.raises(EngineError, match="tiny-v3"):
        client.generate("tiny-v3", [1, 2], max_tokens=1)
    client.load_adapter("tiny-v3", adapters["tiny-v3"])
    client.unload_adapter("tiny-v3")


def test_an_adapter_unloaded_amid_an_answer_lets_it_finish(
    client: EngineClient, engine: EngineProcess, adapters: dict[str, Path]
) -> None:
    client.load_adapter("leaving", adapters["tiny-v3"])
    body = {"model": "leaving", "prompt": [1, 40], "max_tokens": 200, "ignore_eos": True}
    with httpx.stream(
        "POST", f"{engine.url}/v1/completions", json={**body, "stream": True}, timeout=60
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        client.unload_adapter("leaving")
        assert "leaving" not in client.models()
        assert [line for line in lines if line][-1] == "data: [DONE]"
    wait_for(lambda: client.health()["running"] == 0)
    client.load_adapter("leaving", adapters["tiny-v2"])
    client.unload_adapter("leaving")


def _cut(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def _nan(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, file)


def _extra(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file(
        {**tensors, "base_model.model.lm_head.weight": next(iter(tensors.values())).clone()}, file
    )


def _no_config(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": "x"')


@pytest.mark.parametrize("damage", [_cut, _nan, _extra, _no_config, _broken_config])
def test_a_corrupt_adapter_is_refused_and_the_others_serve_on(
    client: EngineClient, adapters: dict[str, Path], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    expected = client.logprobs("tiny-v1", [1, 40, 41], [42, 43])
    folder = tmp_path / "damaged"
    folder.mkdir()
    for file in adapters["tiny-v2"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    damage(folder)
    with pytest.raises(Refused, match="damaged"):
        client.load_adapter("damaged-v1", folder)
    assert "damaged-v1" not in client.models()
    assert client.logprobs("tiny-v1", [1, 40, 41], [42, 43]) == expected
    client.load_adapter("damaged-v1", adapters["tiny-v2"])
    client.unload_adapter("damaged-v1")


@pytest.mark.parametrize("name", ["", "a.b", "base", "x" * 300, "new\nline"])
def test_a_name_that_cannot_be_one_is_refused(
    client: EngineClient, adapters: dict[str, Path], name: str
) -> None:
    with pytest.raises(Refused):
        client.load_adapter(name, adapters["tiny-v1"])


def test_a_missing_model_and_a_port_in_use_are_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is not there"):
        EngineProcess(Home(tmp_path), tmp_path / "absent").start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=f"port {port} is in use"):
            EngineProcess(Home(tmp_path), TINY, port=port).start()


def test_nothing_is_left_of_the_engine_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = f"""
        import time
        from pathlib import Path
        from flywheel.home import Home
        from serving.engines.process import EngineProcess
        engine = EngineProcess(Home(Path({str(tmp_path)!r})), Path({str(TINY)!r}), threads=1)
        engine.start()
        print(engine.pid, engine.port, flush=True)
        time.sleep(600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid, port = map(int, parent.stdout.readline().split())
    assert alive(pid) and not free(port)
    parent.kill()
    parent.wait()
    wait_for(lambda: not alive(pid) and free(port), 20)


def test_stop_drains_nothing_but_leaves_nothing(tmp_path: Path) -> None:
    engine = EngineProcess(Home(tmp_path), TINY, threads=1)
    engine.start()
    with EngineClient(engine.url) as client:
        client.drain()
        assert not client.ready()
        with pytest.raises(EngineError, match="draining"):
            client.generate("base", [1, 2], max_tokens=1)
    pid = engine.pid
    engine.stop()
    assert pid is not None and not alive(pid) and free(engine.port)

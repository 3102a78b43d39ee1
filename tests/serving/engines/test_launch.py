"""vLLM's launcher with a stand-in for vLLM: whoever is killed, and how, nobody is left."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from serving.engines import launch_vllm

LAUNCHER = Path(launch_vllm.__file__)
STAND_IN = """
    import multiprocessing, os, sys, time

    def worker():
        open(f"{os.environ['PLACE']}/worker", "w").write(str(os.getpid()))
        time.sleep(600)

    def core():
        multiprocessing.get_context("spawn").Process(target=worker).start()
        open(f"{os.environ['PLACE']}/core", "w").write(str(os.getpid()))
        time.sleep(600)

    def main():
        assert sys.argv[1:5] == ["--host", "127.0.0.1", "--port", os.environ["PORT"]], sys.argv
        assert not any(path.endswith("serving/engines") for path in sys.path)
        multiprocessing.get_context("spawn").Process(target=core).start()
        time.sleep(600)
"""


class Tree:
    def __init__(self, place: Path) -> None:
        package = place / "vllm" / "entrypoints" / "launchers" / "api_server"
        package.mkdir(parents=True)
        (package / "entry.py").write_text(textwrap.dedent(STAND_IN))
        environment = {**os.environ, "PYTHONPATH": str(place), "PLACE": str(place), "PORT": "1"}
        self.first = subprocess.Popen(
            [sys.executable, "-P", str(LAUNCHER), "1", "--model", "x"],
            stdin=subprocess.PIPE,
            env=environment,
            cwd=place,
            start_new_session=True,
        )
        wait_for((place / "worker").exists)
        self.core, self.worker = (
            int(wait_for(lambda name=name: (place / name).read_text()))  # type: ignore[misc]
            for name in ("core", "worker")
        )

    def left(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                if os.getpgid(process.pid) == self.first.pid and process.status() != "zombie":
                    found.append(process.pid)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found


def wait_for(what: Callable[[], object], seconds: float = 60) -> str:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return str(found)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path)
    try:
        yield made
    finally:
        if made.left():
            os.killpg(made.first.pid, signal.SIGKILL)
        made.first.wait()


def test_when_its_parent_is_gone_all_are(tree: Tree) -> None:
    assert {tree.first.pid, tree.core, tree.worker} <= set(tree.left())
    assert tree.first.stdin is not None
    tree.first.stdin.close()
    tree.first.wait(30)
    wait_for(lambda: not tree.left())


def test_when_the_first_process_is_killed_all_are(tree: Tree) -> None:
    tree.first.kill()
    tree.first.wait(30)
    wait_for(lambda: not tree.left())


def test_when_parent_and_first_process_are_killed_at_once_all_are(tree: Tree) -> None:
    os.kill(tree.first.pid, signal.SIGKILL)
    assert tree.first.stdin is not None
    tree.first.stdin.close()
    tree.first.wait(30)
    wait_for(lambda: not tree.left())


def test_when_the_engine_core_is_killed_its_workers_are(tree: Tree) -> None:
    os.kill(tree.core, signal.SIGKILL)
    wait_for(lambda: tree.worker not in tree.left())


def test_a_port_in_use_is_told_by_its_own_exit_code(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, "-P", str(LAUNCHER), port],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.wait(60) == 98 and process.stderr is not None
        assert f"port {port} is in use" in process.stderr.read().decode()
    assert process.stdin is not None
    process.stdin.close()
    process.stderr.close()

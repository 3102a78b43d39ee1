"""The embedded engine as a child process: started, watched, restarted, stopped.

Enter: a model's folder and what says which adapters it must serve. Invariants: its URL stays the
same over restarts; after one it serves every adapter it should; it never outlives this process.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from flywheel import children
from flywheel.errors import EngineError, FlywheelError
from flywheel.home import Home
from serving.engines.client import EngineClient
from serving.engines.contract import Generated

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_IN_USE = 98
_log = logging.getLogger("flywheel.engine")

Adapters = Callable[[], Mapping[str, Path]]


class EngineProcess:
    """Implements `contract.Engine`. `adapters` is asked at every start for what must be served."""

    def __init__(
        self,
        home: Home,
        model: Path,
        *,
        threads: int = 2,
        context: int = 2048,
        adapters: Adapters = dict,
        port: int | None = None,
        ready_s: float = 180.0,
    ) -> None:
        self.home, self.model, self.ready_s = home, model.resolve(), ready_s
        self.port = port or _free_port()
        self._fixed = port is not None
        self._threads, self._context, self._adapters = threads, context, adapters
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self.restarts = 0
        self.last_error: str | None = None
        """Why the last start failed, or how the last child ended; None while all is well."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.home.logs / "engine.log"

    @property
    def pid(self) -> int | None:
        """None = not running now."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it and waits until it serves.

        Raises:
            EngineError: it cannot be started; the message has the end of its log.
        """
        if self._watcher is not None:
            return
        self._stopping.clear()
        try:
            self._launch()
        except BaseException:
            self._kill()
            if self._fixed or self._child is None or self._child.returncode != _IN_USE:
                raise
            # Somebody took the free port between our asking and the child's taking it.
            self.port = _free_port()
            self._launch()
        self._watcher = threading.Thread(target=self._watch, name="engine-watch", daemon=True)
        self._watcher.start()

    def ready(self) -> bool:
        with EngineClient(self.url) as client:
            return client.ready()

    def load_adapter(self, name: str, folder: Path) -> None:
        with EngineClient(self.url) as client:
            client.load_adapter(name, folder)

    def unload_adapter(self, name: str) -> None:
        with EngineClient(self.url) as client:
            client.unload_adapter(name)

    def load_weights(self, folder: Path) -> None:
        """Starts anew on `folder`; where that fails, on the old model again."""
        old, self.model = self.model, folder.resolve()
        self.stop()
        try:
            self.start()
        except EngineError:
            self.model = old
            self.start()
            raise

    def generate(
        self, model: str, prompt_ids: Sequence[int], *, max_tokens: int, **sampling: Any
    ) -> list[Generated]:
        with EngineClient(self.url) as client:
            return client.generate(model, prompt_ids, max_tokens=max_tokens, **sampling)

    def drain(self) -> None:
        with EngineClient(self.url) as client:
            client.drain()

    def stop(self) -> None:
        """Term, then kill; returns when it is gone."""
        self._stopping.set()
        self._kill()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        self._watcher = None

    def _launch(self) -> None:
        self._spawn()
        with EngineClient(self.url) as client:
            client.wait_ready(self.ready_s, alive=self._ended)
            for name, folder in self._adapters().items():
                try:
                    client.load_adapter(name, folder)
                except FlywheelError as error:
                    # The base and the others must serve all the same.
                    _log.error("adapter %s is not served: %s", name, error)
                    self.last_error = str(error)

    def _spawn(self) -> None:
        arguments = ["--model", str(self.model), "--port", str(self.port)]
        arguments += ["--threads", str(self._threads), "--context", str(self._context)]
        environment = {
            "OMP_NUM_THREADS": str(self._threads),
            # Threads that spin at barriers starve each other where others use the cores too: with
            # two of them generation was eight times slower beside other work.
            "OMP_WAIT_POLICY": "PASSIVE",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "MALLOC_ARENA_MAX": "2",
        }
        self._child = children.start(
            "serving.engines.embedded", arguments, log=self.log, environment=environment
        )

    def _ended(self) -> str | None:
        child = self._child
        if self._stopping.is_set():
            return "it was stopped"
        if child is None or (code := child.poll()) is None:
            return None
        if code == _IN_USE:
            return f"port {self.port} is in use"
        return f"exit code {code}; the end of {self.log}:\n{_tail(self.log)}"

    def _watch(self) -> None:
        """Restarts the child when it ends, waiting longer each time in a row."""
        pause = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            child = self._child
            assert child is not None
            code = child.wait()
            if self._stopping.is_set():
                return
            self.last_error = self.last_error or f"the engine ended with code {code}"
            _log.error("%s: starting it again in %s s", self.last_error, pause)
            if self._stopping.wait(pause):
                return
            try:
                self.restarts += 1
                self.last_error = None
                self._launch()
                pause = _FIRST_PAUSE_S
            except (EngineError, OSError) as error:
                self.last_error = str(error)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
                self._kill()

    def _kill(self) -> None:
        child = self._child
        if child is None:
            return
        for stop_signal, wait_s in ((signal.SIGTERM, 8.0), (signal.SIGKILL, 10.0)):
            if child.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(wait_s)
        if child.stdin is not None:
            child.stdin.close()


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(path: Path, lines: int = 15) -> str:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
        return b"\n".join(file.read().splitlines()[-lines:]).decode("utf-8", "replace")
    return "(no log)"

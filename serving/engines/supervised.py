"""An engine as a child process: started, watched, started again, stopped. What both of ours share.

Enter: what says which adapters must be served, and from the kind of engine, how one is launched.
Invariants: its URL stays the same over restarts; after one it serves every adapter it should; when
its first process is gone, so is all that this one started; it never outlives us.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from flywheel.errors import EngineError, FlywheelError
from flywheel.home import Home
from serving.engines.client import EngineClient
from serving.engines.reach import Access
from serving.engines.through_client import ThroughClient

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CLEANED_S = 5.0
"""How long the group may need to go by itself, and to clean up after itself, once its first
process is gone."""
_IN_USE = 98
_log = logging.getLogger("flywheel.engine")

Adapters = Callable[[], Mapping[str, Path]]


class Supervised(ThroughClient):
    """Implements `contract.Engine`. `adapters` is asked at every start for what must be served."""

    def __init__(
        self,
        home: Home,
        model: Path,
        *,
        adapters: Adapters = dict,
        port: int | None = None,
        ready_s: float,
    ) -> None:
        self.home, self.model, self.ready_s = home, model.resolve(), ready_s
        self.port = port or _free_port()
        self._fixed = port is not None
        self._adapters = adapters
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self.restarts = 0
        self.last_error: str | None = None
        """Why the last start failed, or how the last child ended; None while all is well."""

    @abstractmethod
    def _spawn(self) -> subprocess.Popen[bytes]:
        """Starts the child, the leader of a process group of its own, on `self.port`."""

    @property
    def access(self) -> Access:
        """What a client must know beside the URL."""
        return Access()

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

    @property
    def alive(self) -> bool:
        return self.pid is not None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def client(self, *, timeout_s: float = 600.0) -> EngineClient:
        return EngineClient(self.url, timeout_s=timeout_s, access=self.access)

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

    def revive(self) -> None:
        """For one that lives and cannot answer: it is ended, and so started again."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Term, then kill; returns when it is gone."""
        self._stopping.set()
        self._kill()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        self._watcher = None

    def _launch(self) -> None:
        self._child = self._spawn()
        with self.client() as client:
            client.wait_ready(self.ready_s, alive=self._ended)
            self._load_all(client)

    def _load_all(self, client: EngineClient) -> None:
        for name, folder in self._adapters().items():
            try:
                client.load_adapter(name, folder)
            except FlywheelError as error:
                # The base and the others must serve all the same.
                _log.error("adapter %s is not served: %s", name, error)
                self.last_error = str(error)

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
            _end_group(child.pid)
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
            except (FlywheelError, OSError) as error:
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
        _end_group(child.pid)
        if child.stdin is not None:
            child.stdin.close()


def _end_group(leader: int) -> None:
    """Returns when nobody of the group is left, killing whoever does not go by himself."""
    deadline = time.monotonic() + _CLEANED_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(leader, 0)
            time.sleep(0.05)
        os.killpg(leader, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(path: Path, lines: int = 15) -> str:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
        return b"\n".join(file.read().splitlines()[-lines:]).decode("utf-8", "replace")
    return "(no log)"

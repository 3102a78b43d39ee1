"""An engine as a child process: started, watched, started again, stopped. What both of ours share.

Enter: what says which adapters must be served, and from the kind of engine, how one is launched.
Invariants: its URL stays the same over restarts; it is settled only when every adapter that it
should serve was loaded and is what was trained, or is told with its reason; when its first process
is gone, so is all that this one started; it never outlives us.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from flywheel.errors import EngineError, FlywheelError
from flywheel.home import Home
from serving.engines.client import EngineClient
from serving.engines.loading import DEATHS, MEND_S, Loading
from serving.engines.loading import Adapters as Adapters
from serving.engines.reach import Access
from serving.engines.through_client import ThroughClient
from serving.verify import FLOAT32, Bounds

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_LASTED_S = 60.0
"""An engine that ran for so long did not fail to start: the next pause is the first again."""
_CLEANED_S = 5.0
"""How long the group may need to go by itself, and to clean up after itself, once its first
process is gone."""
_IN_USE = 98
_log = logging.getLogger("flywheel.engine")


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
        bounds: Bounds = FLOAT32,
    ) -> None:
        self.home, self.model, self.ready_s = home, model.resolve(), ready_s
        self.port = port or _free_port()
        self._fixed = port is not None
        self.loading = Loading(adapters, bounds)
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self.restarts = 0
        self.last_error: str | None = None
        """Why the last start failed, how the last child ended, or what is not served; None while
        all is well."""
        self._settled = False

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

    @property
    def settled(self) -> bool:
        """Whether it runs, and what it must serve was loaded and checked since its start."""
        return self._settled and self.alive

    @property
    def lacking(self) -> Mapping[str, str]:
        """What it must serve and does not, and why."""
        return self.loading.lacking

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
        for left in reversed(range(DEATHS + 1)):
            try:
                self._launch()
                break
            except BaseException as error:
                self._kill()
                if not left or not self._worth_another(error):
                    raise
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
        self._settled = False
        self._child = self._spawn()
        with self.client() as client:
            client.wait_ready(self.ready_s, alive=self._ended)
            self._load_all(client)

    def _load_all(self, client: EngineClient) -> None:
        self.loading.load(client)
        self.last_error = self.loading.words()
        self._settled = True

    def _mend(self) -> None:
        """Loads what could not be loaded, by now perhaps it can."""
        try:
            with self.client() as client:
                self.loading.load(client, client.models())
            self.last_error = self.loading.words()
        except (FlywheelError, OSError) as error:
            _log.warning("what is not served could not be loaded again: %s", error)

    def _worth_another(self, error: BaseException) -> bool:
        """Whether a first start that failed may go better: on another port, where somebody took the
        free one between our asking and the child's taking it; without weights that it ended over.
        """
        if self._child is not None and self._child.returncode == _IN_USE and not self._fixed:
            self.port = _free_port()
            return True
        ended = isinstance(error, EngineError) and not self._stopping.is_set()
        return ended and self.loading.under_way

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
        pause, begun = _FIRST_PAUSE_S, time.monotonic()
        while not self._stopping.is_set():
            child = self._child
            assert child is not None
            try:
                code = child.wait(MEND_S if self.loading.lacking else None)
            except subprocess.TimeoutExpired:
                self._mend()
                continue
            _end_group(child.pid)
            if self._stopping.is_set():
                return
            if time.monotonic() - begun > _LASTED_S:
                pause = _FIRST_PAUSE_S
            if self._settled or self.last_error is None:
                self.last_error = f"the engine ended with code {code}"
            _log.error("%s: starting it again in %s s", self.last_error, pause)
            if self._stopping.wait(pause):
                return
            try:
                self.restarts += 1
                self.last_error = None
                begun = time.monotonic()
                self._launch()
            except (FlywheelError, OSError) as error:
                self.last_error = str(error)
                self._kill()
            pause = min(pause * 2, _LONGEST_PAUSE_S)

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

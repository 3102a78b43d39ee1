"""The bridge's process, from our side: requests in JSON lines, answers by their ids.

Enter a Python of the environment where verifiers is installed, and a name. Leave its problems and
what it made of each episode. Invariants: nothing of the package is imported here; the process gets
no key or setting of ours, and ends with the block or with this process, whichever is first.
"""

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from flywheel.errors import EngineError, MissingPart, ProjectError

BRIDGE = Path(__file__).with_name("bridge.py")
_START_S = 600.0
"""The package takes half a minute to import where the machine is busy."""
_END_S = 30.0
_SECRET = ("FLYWHEEL_", "PREFECT_", "MLFLOW_", "PRIME_")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


class Child:
    def __init__(self, process: "subprocess.Popen[str]", name: str) -> None:
        self._process, self.name = process, name
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._number = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def open(self, config: dict[str, Any]) -> dict[str, Any]:
        """What it is: version, harness, names of its rewards and metrics.

        Raises:
            ProjectError: the package has no such environment, or cannot load it.
        """
        self._say(do="open", name=self.name, config=config)
        return self._next()

    def problems(self, limit: int | None) -> list[dict[str, Any]]:
        self._say(do="problems", limit=limit)
        found = [self._next()]
        while not found[-1].get("end"):
            found.append(self._next())
        return [one["problem"] for one in found[:-1]]

    def run(self, **asked: Any) -> "Future[dict[str, Any]]":
        """One episode of one task at an address; may be asked many times together."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            number, self._number = self._number, self._number + 1
            self._waiting[number] = future
        self._say(do="run", id=number, **asked)
        return future

    def _next(self) -> dict[str, Any]:
        try:
            answer = self._said.get(timeout=_START_S)
        except queue.Empty:
            raise EngineError(f"verifiers:{self.name} said nothing for {_START_S:g} s") from None
        if "error" in answer:
            raise ProjectError(f"verifiers:{self.name}: {answer['error']}")
        return answer

    def _say(self, **asked: Any) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with self._lock, contextlib.suppress(BrokenPipeError):
            pipe.write(json.dumps(asked) + "\n")
            pipe.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "id" not in answer:
                self._said.put(answer)
            elif (future := self._waiting.pop(answer["id"], None)) and not future.cancelled():
                future.set_result(answer)
        code = self._process.wait()
        gone = f"its process ended (exit code {code}); what it said is above"
        self._said.put({"error": gone})
        for future in list(self._waiting.values()):
            if not future.cancelled():
                future.set_exception(EngineError(f"verifiers: {gone}"))


@contextlib.contextmanager
def started(place: Path, name: str) -> Iterator[Child]:
    """
    Args:
        place: the environment that `make install-verifiers` made.
        name: of the package's environment.

    Raises:
        MissingPart: it is not there.
    """
    python = place / "bin" / "python"
    if not python.is_file():
        raise MissingPart(
            f"no verifiers environment at {place}: `make install-verifiers` makes it, and "
            f"`{python} -m pip install NAME` adds an environment of its hub"
        )
    process = subprocess.Popen(
        [str(python), str(BRIDGE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_surroundings(python.parent),
        start_new_session=True,
    )
    try:
        yield Child(process, name)
    finally:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _surroundings(programs: Path) -> dict[str, str]:
    """This process's environment without settings and keys of ours; its own programs first."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_SECRET) and not any(word in name.upper() for word in _SECRET_WORDS)
    }
    return {**kept, "PATH": f"{programs}:{kept.get('PATH', os.defpath)}"}

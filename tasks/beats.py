"""Heartbeats: a run that a worker started says in the home that it lives, and leaves when it must.

Enter a flow run's id; leaves a file in `prefect/beats/` that names its process and is written anew
while it lives. A run never outlives the worker that started it, nor its time limit: who reads the
beats (`flows/reaper.py`) need not trust any clock but his own.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from flywheel import durable
from flywheel.errors import Full
from flywheel.home import Home
from flywheel.records import Record
from serving.presence import started


class Beat(Record, frozen=True, kw_only=True):
    run_id: str
    """Prefect's id of the flow run."""
    pid: int
    started: str
    """Boot and clock tick at which the process began; with `pid` it names one process for ever."""
    host: str
    number: int
    """Grows with each beat: who saw it grow knows that the run lived, whatever the clocks say."""
    limit_s: float | None = None
    """After which it ends itself; None = no limit."""
    age_s: float = 0.0
    """Seconds that it ran, by a clock that nobody sets."""


_DIGITS = 10
"""Of the largest process id; a damaged record may hold more than Python makes a number of."""


def folder(home: Home) -> Path:
    return home.prefect / "beats"


def myself() -> str:
    """`pid@start` of this process."""
    return f"{os.getpid()}@{started(os.getpid())}"


def alive(process: str) -> bool:
    """Whether the process that `myself` named is there still."""
    pid, _, begun = process.partition("@")
    return pid.isdecimal() and len(pid) <= _DIGITS and started(int(pid)) == begun


def beats(home: Home) -> dict[str, Beat]:
    """The last beat of each run that has not ended in order, by run id."""
    found = {}
    for path in folder(home).glob("*.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            beat = msgspec.json.decode(path.read_bytes(), type=Beat)
            found[beat.run_id] = beat
    return found


def forget(home: Home, run_id: str) -> None:
    (folder(home) / f"{run_id}.json").unlink(missing_ok=True)


class Beating:
    """Beats from a thread of its own until `stop`, so that a busy or blocked run beats too.

    Calls `orphaned` when the worker is gone, `overdue` when the limit is over; both end the
    process.
    """

    def __init__(
        self,
        home: Home,
        run_id: str,
        *,
        every_s: float,
        limit_s: float | None,
        worker: str | None,
        orphaned: Callable[[], None],
        overdue: Callable[[float], None],
    ) -> None:
        self.home, self.run_id, self.every_s = home, run_id, every_s
        self.limit_s, self.worker = limit_s, worker
        self.orphaned, self.overdue = orphaned, overdue
        self.begun, self.number = time.monotonic(), 0
        self._over = threading.Event()

    def start(self) -> None:
        self.beat()
        threading.Thread(target=self._run, name="beats", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        forget(self.home, self.run_id)

    def beat(self) -> None:
        self.number += 1
        beat = Beat(
            run_id=self.run_id,
            pid=os.getpid(),
            started=started(os.getpid()) or "",
            host=socket.gethostname(),
            number=self.number,
            limit_s=self.limit_s,
            age_s=round(time.monotonic() - self.begun, 1),
        )
        durable.write(folder(self.home) / f"{self.run_id}.json", msgspec.json.encode(beat))

    def _run(self) -> None:
        last = time.monotonic()
        while not self._over.wait(min(1.0, self.every_s)):
            now = time.monotonic()
            if self.worker is not None and not alive(self.worker):
                self.orphaned()
            if self.limit_s is not None and now - self.begun > self.limit_s:
                self.overdue(self.limit_s)
            if now - last >= self.every_s:
                last = now
                with contextlib.suppress(OSError, Full):  # a full disk must not end the run
                    self.beat()

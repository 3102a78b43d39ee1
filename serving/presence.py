"""The record of the running server, and the lock that lets only one run in a home.

The record says more than a pid: pids are used again, so the process's start is part of it. A record
whose process is gone is no server, whoever left it.
"""

import contextlib
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flywheel import durable
from flywheel.errors import Busy
from flywheel.home import Home
from flywheel.records import Record
from serving.engines.reach import Access
from storage.locks import held

if TYPE_CHECKING:
    from serving.engines.client import EngineClient

_MOST = 2**31 - 1
"""A record that was damaged may hold any number; no process has a larger one."""


class ServerRecord(Record, frozen=True, kw_only=True):
    pid: int
    started: str
    """Boot and clock tick at which the process began; with `pid` it names one process for ever."""
    url: str
    """Of the gateway, without /v1."""
    engine_url: str
    """Of the engine itself, which only this machine's programs reach."""
    projects: tuple[str, ...]
    access: Access = Access()
    """What a client of the engine must know beside its URL."""
    certificate: str | None = None
    """PEM file of the gateway's, where it speaks TLS."""

    def verify(self) -> ssl.SSLContext | bool:
        """How httpx trusts it: this very certificate, by whatever name it is reached."""
        if self.certificate is None:
            return True
        context = ssl.create_default_context(cafile=self.certificate)
        context.check_hostname = False
        return context


def running(home: Home) -> ServerRecord | None:
    """The server of this home that is alive; None = there is none."""
    try:
        record = msgspec.json.decode(home.server.read_bytes(), type=ServerRecord)
    except (FileNotFoundError, IsADirectoryError, msgspec.DecodeError):
        return None
    return record if started(record.pid) == record.started else None


def running_engine(home: Home) -> "EngineClient | None":
    """The running server's engine, as who changes what it serves speaks to it; None = none runs."""
    from serving.engines.client import EngineClient

    server = running(home)
    return EngineClient(server.engine_url, access=server.access) if server else None


def started(pid: int) -> str | None:
    """When process `pid` began; None = no such process, or one that has ended already."""
    if not 0 < pid <= _MOST:
        return None
    try:
        # The name, in brackets, may hold anything; what follows it is state, then numbers.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"


@contextlib.contextmanager
def only_server(home: Home) -> Iterator[None]:
    """
    Raises:
        Busy: another server has this home; names it.
    """
    other = running(home)
    who = f" (pid {other.pid}, {other.url})" if other else ""
    busy = f"a server runs in {home.root} already{who}: stop it first, or use another FLYWHEEL_HOME"
    # Not at once: somebody may be looking whether it is free.
    with held(home.locks / "server.lock", wait_s=0.5, busy=busy):
        yield


def being_served(home: Home) -> bool:
    """Whether a server has this home, one that only starts included."""
    try:
        with held(home.locks / "server.lock", wait_s=0, busy="taken"):
            return False
    except Busy:
        return True


def announce(
    home: Home,
    url: str,
    engine_url: str,
    projects: frozenset[str],
    access: Access = Access(),  # noqa: B008 (it is frozen)
    certificate: str | None = None,
) -> ServerRecord:
    """Writes this process's record, durably. Called once it answers."""
    pid = os.getpid()
    begun = started(pid)
    if begun is None:
        raise Busy("this process cannot find itself under /proc: a Linux system is needed")
    record = ServerRecord(
        pid=pid,
        started=begun,
        url=url,
        engine_url=engine_url,
        projects=tuple(sorted(projects)),
        access=access,
        certificate=certificate,
    )
    durable.write(home.server, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    return record


def withdraw(home: Home) -> None:
    home.server.unlink(missing_ok=True)

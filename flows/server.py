"""Prefect's server: the one that `flywheel prefect` keeps in this home, or one for a command.

Prefect's own temporary server outlives a flow that is killed, and dies before it at Ctrl-C. Ours is
a child: it leaves when its parent is gone, however that went, and is started again on the same port
when it dies. No import of Prefect here, so that it starts while the flows are being imported.
"""

import argparse
import atexit
import contextlib
import http.client
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec

from flywheel import children, durable
from flywheel.errors import FlywheelError
from flywheel.home import Home
from flywheel.records import Record
from tasks.beats import alive

_START_S = 180.0


class PrefectServer(Record, frozen=True, kw_only=True):
    """The record of the running `flywheel prefect`, in `prefect/server.json`."""

    process: str
    """`pid@start` of `flywheel prefect` itself, which starts its server again when that dies."""
    url: str
    """Of the API, with /api."""
    pages: str
    """Of the pages."""
    worker: bool


def record_of(home: Home) -> Path:
    return home.prefect / "server.json"


def running(home: Home) -> PrefectServer | None:
    """What `flywheel prefect` keeps in this home; None = it does not run."""
    try:
        record = msgspec.json.decode(record_of(home).read_bytes(), type=PrefectServer)
    except (FileNotFoundError, IsADirectoryError, msgspec.DecodeError):
        return None
    return record if alive(record.process) else None


def start_prefect(home: Home) -> None:
    """From now on flows are recorded by the server that PREFECT_API_URL names, else by the one that
    runs in `home`, else by one of ours, which ends with this process, after Prefect has told it its
    last.

    Must be called before Prefect is imported.

    Raises:
        FlywheelError: it does not start; names its log.
    """
    if "PREFECT_API_URL" in os.environ:
        return
    there = running(home)
    if there is not None:
        wait_for(there.url, lambda: running(home) is not None, home.logs / "prefect.log")
        os.environ["PREFECT_API_URL"] = there.url
        return
    os.environ["PREFECT_API_URL"] = _own(home)


def _own(home: Home) -> str:
    said, log = home.prefect / f"server-{os.getpid()}", home.logs / "prefect.log"
    arguments = ["--said", str(said)]
    child = children.Kept(lambda: children.start("flows.server", arguments, log=log))
    over = threading.Event()

    def tend() -> None:
        while not over.wait(0.5):
            child.tend()

    def end() -> None:
        over.set()
        tending.join()
        child.stop(3)

    url = _url(child, said, log)
    arguments[:] = ["--port", port_of(url)]  # those who have its URL find it there again
    tending = threading.Thread(target=tend, name="prefect server", daemon=True)
    tending.start()
    atexit.register(end)
    return url


def _url(kept: children.Kept, said: Path, log: Path) -> str:
    until = time.monotonic() + _START_S
    while not said.exists():
        if kept.child.poll() is not None or time.monotonic() > until:
            raise not_started(log)
        time.sleep(0.02)
    url = said.read_text()
    said.unlink()
    return url


def port_of(url: str) -> str:
    return url.rpartition(":")[2].partition("/")[0]


def not_started(log: Path) -> FlywheelError:
    return FlywheelError(f"Prefect's server did not start; the end of {log} says why")


def wait_for(url: str, there: Callable[[], bool], log: Path) -> None:
    """
    Raises:
        FlywheelError: it does not answer in time, or is gone.
    """
    until = time.monotonic() + _START_S
    while not answers(url):
        if not there() or time.monotonic() > until:
            raise not_started(log)
        time.sleep(0.2)


def gone(error: BaseException | None) -> str | None:
    """What to tell of an error that comes from Prefect's server being gone; None = it does not."""
    url = os.environ.get("PREFECT_API_URL")
    while error is not None:
        if url and type(error).__module__.partition(".")[0] in ("httpx", "httpcore"):
            if answers(url):
                return None
            return (
                f"Prefect's server at {url} does not answer any more. What was done is kept: once "
                "it is back, run the same command again"
            )
        error = error.__cause__ or error.__context__
    return None


def answers(url: str, wait_s: float = 5.0) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    # A damaged record names what is no address.
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        return bool(opener.open(f"{url}/health", timeout=wait_s).status == 200)
    return False


def main() -> None:
    """`python -m flows.server`: a server until it is told to stop."""
    children.follow_parent()
    parser = argparse.ArgumentParser(prog="flows.server", description=__doc__)
    parser.add_argument("--said", type=Path, help="file to write the URL into, once it has a port")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--whole", action="store_true", help="with pages and schedules")
    given = parser.parse_args()
    family = socket.AF_INET6 if ":" in given.host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((given.host, given.port))
        listening.listen(128)  # who asks before it is ready waits
        if given.said:
            port = listening.getsockname()[1]
            durable.write(given.said, f"http://127.0.0.1:{port}/api".encode())
        if not given.whole:
            os.environ["PREFECT_UI_ENABLED"] = "0"
        import uvicorn
        from prefect.server.api.server import create_app

        application = create_app(ephemeral=not given.whole, final=True)
        uvicorn.Server(
            uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=3)
        ).run(sockets=[listening])


if __name__ == "__main__":
    main()

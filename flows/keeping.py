"""`flywheel prefect`: a real Prefect server with its pages, and a worker, kept as long as it runs.

Both are children that never outlive it, and are started again when they die. While it runs,
`prefect/server.json` says where, and every command of this home uses that server.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
from filelock import FileLock, Timeout

from flows.server import PrefectServer, answers, port_of, record_of, running, wait_for
from flywheel import children, durable
from flywheel.errors import Busy, UsageError
from flywheel.home import Home
from flywheel.progress import report
from flywheel.settings import load
from tasks.beats import myself

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def keep_prefect(
    home: Home,
    *,
    queue: str,
    host: str = "127.0.0.1",
    port: int = 4200,
    worker: bool = True,
    ready: Callable[[PrefectServer], None] | None = None,
) -> None:
    """Runs until SIGTERM or SIGINT. Where PREFECT_API_URL names a server, only a worker is kept.

    Args:
        queue: of this home, in the work pool.
        port: 0 = a free one.
        ready: is told once the server answers.

    Raises:
        Busy: it runs in this home already, or the port is taken.
        UsageError: it would listen to others without a password.
        FlywheelError: the server does not start.
    """
    stop = threading.Event()
    with only_one(home), stopped_by_signals(stop), contextlib.ExitStack() as kept:
        given, tended = os.environ.get("PREFECT_API_URL"), []
        if given is None:
            url = f"http://{_reached(host)}:{free_port(host, port)}/api"
            tended.append(_server(home, host, url))
            kept.callback(tended[0].stop, 5)
            child = tended[0].child
            report("starting Prefect's server", 0)
            wait_for(
                url, lambda: child.poll() is None and not stop.is_set(), home.logs / "prefect.log"
            )
        else:
            url = given
        if worker:
            tended.append(_worker(home, url, queue))
            kept.callback(tended[-1].stop, 20)
        record = PrefectServer(
            process=myself(), url=url, pages=url.removesuffix("/api"), worker=worker
        )
        durable.write(record_of(home), msgspec.json.format(msgspec.json.encode(record)) + b"\n")
        kept.callback(record_of(home).unlink, missing_ok=True)
        report("Prefect", 1, 1, record.pages)
        if ready is not None:
            ready(record)
        while not stop.wait(0.5):
            for one in tended:
                if one.tend():
                    report("started again", one.restarts, None, "see logs/ of the home")


def _server(home: Home, host: str, url: str) -> children.Kept:
    arguments = ["--host", host, "--port", port_of(url), "--whole"]
    log = home.logs / "prefect.log"
    return children.Kept(
        lambda: children.start(
            "flows.server", arguments, log=log, environment=server_settings(home, url)
        )
    )


def server_settings(home: Home, url: str) -> dict[str, str]:
    """What a server that runs for long wants, where the person has not said otherwise.

    Few runs are made ahead, so that a machine that slept finds few of them late. Leases live on
    disk: a server that is started again must know who holds the slot of a running flow. Its loops
    are as slow as people can bear, since each costs CPU while nothing happens.
    """
    wanted = {
        "PREFECT_UI_API_URL": url,
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home.prefect / "ui"),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        "PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS": "2",
        "PREFECT_SERVER_SERVICES_SCHEDULER_MIN_SCHEDULED_TIME": "PT5M",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "15",
        "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "60",
        "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_LOOP_SECONDS": "60",
        "PREFECT_SERVER_SERVICES_CLEANUP_RECONCILER_LOOP_SECONDS": "60",
        "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS": "30",
        "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "30",
    }
    return {name: value for name, value in wanted.items() if name not in os.environ}


def _worker(home: Home, url: str, queue: str) -> children.Kept:
    log = home.logs / "worker.log"
    environment = {
        **{f"FLYWHEEL_{name.upper()}": str(path) for name, path in load().paths().items()},
        "PREFECT_API_URL": url,
        "FLYWHEEL_HOME": str(home.root),
        "PREFECT_LOGGING_LEVEL": "INFO",  # for the runs' pages; our own console stays quiet
    }
    return children.Kept(
        lambda: children.start("flows.worker", [queue], log=log, environment=environment)
    )


@contextlib.contextmanager
def only_one(home: Home) -> Iterator[None]:
    """
    Raises:
        Busy: another one keeps Prefect in this home.
    """
    home.locks.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(home.locks / "prefect.lock", timeout=0.5):
            yield
    except Timeout as error:
        there = running(home)
        where = f" (process {there.process.partition('@')[0]}, {there.pages})" if there else ""
        raise Busy(f"Prefect is kept in {home.root} already{where}: stop it first") from error


@contextlib.contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port(host: str, port: int) -> int:
    """`port`, if it may be listened on; a free one where it is 0.

    Raises:
        Busy: it is taken, or may not be used.
        UsageError: the address is open to others, and the server would ask nobody for a password.
    """
    if host not in _LOOPBACK and not os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        raise UsageError(
            f"Prefect's server will not listen on {host} without a password: whoever reaches it "
            "may run flows here. Set PREFECT_SERVER_API_AUTH_STRING and PREFECT_API_AUTH_STRING "
            "to the same user:password, or stay on 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except (OSError, OverflowError) as error:
            at = f"http://127.0.0.1:{port}/api"
            prefect = f" A Prefect server answers there: PREFECT_API_URL={at} uses it."
            raise Busy(
                f"cannot listen on {host}:{port}: {error}. If another program has it, choose "
                f"another port with --port.{prefect if answers(at, 0.5) else ''}"
            ) from error
        return int(tried.getsockname()[1])


def _reached(host: str) -> str:
    """The address at which this machine's programs reach what listens on `host`."""
    if host in ("0.0.0.0", "::", "localhost", "::1"):
        return "127.0.0.1" if host in ("0.0.0.0", "localhost") else "[::1]"
    return host

"""MLflow's own pages on this home: `flywheel mlflow` keeps them, for as long as it runs.

Enters a home and a port; leaves a server on this machine only, in a child that never outlives its
parent. It is one process: MLflow's own command starts several, which a kill would leave behind.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from flywheel import children
from flywheel.errors import FlywheelError
from flywheel.home import Home
from flywheel.progress import report
from flywheel.settings import quiet_dependencies
from serving.listening import listen
from serving.registry import open_mlflow, telling, tracking_uri

HOST = "127.0.0.1"
_START_S = 180.0


def keep_mlflow(home: Home, *, port: int, ready: Callable[[str], None]) -> None:
    """Runs until SIGTERM or SIGINT; a server that dies is started again.

    Args:
        port: 0 = a free one.
        ready: is told the URL once the pages answer.

    Raises:
        Busy: the port is taken.
        CorruptFile: MLflow's database is none.
        FlywheelError: it does not start; names its log.
    """
    tracking_uri(home)
    with listen(HOST, port) as free:  # so that a taken port is said at once
        port = free.getsockname()[1]
    url, log = f"http://{HOST}:{port}", home.logs / "mlflow.log"
    arguments = [str(home.root), str(port)]
    with stopped_by_signals() as stop:
        kept = children.Kept(lambda: children.start("serving.registry_server", arguments, log=log))
        try:
            if _wait_for(url, kept, stop, log):
                ready(url)
            while not stop.wait(0.5):
                if kept.tend():
                    report("MLflow was started again", kept.restarts, None, f"see {log}")
        finally:
            kept.stop(5)


def _wait_for(url: str, kept: children.Kept, stop: threading.Event, log: Path) -> bool:
    """Whether it answers; False = it was stopped before."""
    report("starting MLflow", 0, 1)
    until = time.monotonic() + _START_S
    while not _answers(url):
        if stop.wait(0.1):
            return False
        if kept.child.poll() is not None or time.monotonic() > until:
            raise FlywheelError(f"MLflow did not start; the end of {log} says why")
    report("starting MLflow", 1, 1)
    return True


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def experiments(url: str) -> dict[str, str]:
    """Project -> the page of its runs, at the server at `url`; {} = it does not say."""
    try:
        answer = httpx.post(
            f"{url}/api/2.0/mlflow/experiments/search",
            json={"max_results": 1000, "order_by": ["name"]},
            timeout=30,
            trust_env=False,
        ).raise_for_status()
    except httpx.HTTPError:
        return {}
    return {
        one["name"]: f"{url}/#/experiments/{one['experiment_id']}"
        for one in answer.json().get("experiments", ())
        if one["name"] != "Default"
    }


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """The event is set by SIGTERM or SIGINT for the time of the block."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def surroundings(home: Home, port: int) -> dict[str, str]:
    """What MLflow's server reads from its environment. Requests from other pages and under other
    hosts' names are refused, as is its default; artifacts are files of the home."""
    uri = tracking_uri(home)
    return {
        "_MLFLOW_SERVER_FILE_STORE": uri,
        "_MLFLOW_SERVER_REGISTRY_STORE": uri,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": (home.mlflow.resolve() / "artifacts").as_uri(),
        "_MLFLOW_SGI_NAME": "uvicorn",
        "MLFLOW_SERVER_ALLOWED_HOSTS": f"127.0.0.1:{port},localhost:{port}",
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_REGISTRY_URI": uri,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def main() -> None:
    """`python -m serving.registry_server HOME PORT`."""
    children.follow_parent()
    home, port = Home(Path(sys.argv[1])), int(sys.argv[2])
    quiet_dependencies(home)
    os.environ.update(surroundings(home, port))
    os.chdir(home.mlflow)  # whatever MLflow makes beside, it makes there
    with listen(HOST, port) as listening:
        import uvicorn
        from mlflow.server.fastapi_app import app

        with telling(home):
            open_mlflow(home).search_experiments(max_results=1)
        config = uvicorn.Config(app, log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()

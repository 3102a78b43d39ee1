"""The server of one home: the engine as a child, the gateway in front, and their one life.

`serve` runs until it is told to stop, then finishes its streams, stops the engine and syncs the
journal. `ensure` gives whoever needs a server the running one, or one of its own for as long.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import uvloop

from flywheel import children
from flywheel.errors import Busy, EngineError, FlywheelError, MissingPart, UsageError
from flywheel.home import Home
from flywheel.project import Project, base_folder, load_project
from flywheel.settings import Settings, load, quiet_dependencies
from serving.beginning import put_first
from serving.engines.table import ENGINES
from serving.keeper import EngineChild, adapters_of
from serving.keys import check_host, keys_of
from serving.life import Life
from serving.listening import check_tls, listen
from serving.logs import log_to
from serving.presence import ServerRecord, being_served, only_server
from serving.presence import running as running
from serving.provider_keys import warn_of_keys
from serving.realign import bring_up, realign
from serving.worker import DRAIN_S

Reconcile = Callable[[Home, str], None]
"""Brings everything else in line with the routing file; gets the engine's URL."""


def serve(
    home: Home,
    projects: Sequence[Project],
    settings: Settings,
    *,
    port: int | None = None,
    host: str | None = None,
    reconcile: Reconcile = realign,
    engine: EngineChild | None = None,
    ready: Callable[[ServerRecord], None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        projects: of one base model, which they share; the first one's [serving] is the server's.
        port: of the gateway; 0 = a free one; None = the project's.
        reconcile: is called before the first request is let in, and after each change that the
            server makes by itself.
        engine: not started yet; None = the one that the project names.
        ready: is told once requests are answered.

    Raises:
        Busy: another server has this home, or the port is taken.
        UsageError: the host is open to others and there are no keys; several base models; TLS
            files that are none.
        EngineError: the engine does not start.
    """
    first = projects[0].serving
    log_to(first.log)
    one_base(projects, settings)
    host = host or first.host
    check_host(host, keys_of(settings))
    check_tls(first)
    warn_of_keys(projects)

    def settle(engine_url: str) -> None:
        reconcile(home, engine_url)

    def begin(engine_url: str) -> None:
        settle(engine_url)
        for project in projects:
            put_first(home, project, str(base_folder(project, settings.models)))

    with only_server(home), listen(host, first.port if port is None else port) as at:
        bring_up(home)
        at.certificate = str(first.tls_cert.resolve()) if first.tls_cert else None
        engine = engine or _engine_of(home, projects, settings)
        environment = _environment(home, settings)
        life = Life(home, projects, at, engine, environment, begin, settle, ready)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(life.run())


@contextlib.contextmanager
def ensure(home: Home, project: Project, settings: Settings) -> Iterator[ServerRecord]:
    """The server that runs in this home, else one of our own until the block ends.

    Raises:
        Busy: the one that runs serves other projects.
        MissingPart: no base model to start one with.
        EngineError: none could be started.
    """
    record = running(home)
    if record is not None:
        yield _serving(record, project)
        return
    base_model_of(project, settings)
    log = home.logs / "server.log"
    begin = log.stat().st_size if log.exists() else 0
    child = children.start(
        "serving.server",
        ["--project", str(project.folder), "--port", "0"],
        log=log,
        environment=_environment(home, settings),
    )
    try:
        yield _wait_for(home, project, child, log, begin)
    finally:
        _end(child)


def base_model_of(project: Project, settings: Settings) -> Path:
    """The base model's folder.

    Raises:
        MissingPart: there is none.
    """
    model = base_folder(project, settings.models)
    if not model.is_dir():
        raise MissingPart(
            f"the base model {project.model.base!r} of {project.name} is neither in its folder "
            f"nor at {model}: `make model` brings the demo's"
        )
    return model


def one_base(projects: Sequence[Project], settings: Settings) -> None:
    """
    Raises:
        UsageError: several projects that do not stand on one base model.
    """
    bases = {str(base_folder(one, settings.models).resolve()) for one in projects}
    if len(bases) > 1:
        raise UsageError(
            "one engine serves one base model, and these projects name several folders: "
            f"{', '.join(sorted(bases))}. Where they are copies of one model, let [model] base of "
            "each project name one folder, or one under FLYWHEEL_MODELS "
            f"({settings.models}); else do with one after the other, or give each a home of its own"
        )


def _engine_of(home: Home, projects: Sequence[Project], settings: Settings) -> EngineChild:
    """FLYWHEEL_ENGINE or `--engine` go before the project's own word."""
    first = projects[0]
    names = frozenset(project.name for project in projects)
    return ENGINES[settings.engine or first.serving.engine](
        home,
        base_model_of(first, settings),
        first.serving,
        settings,
        lambda: adapters_of(home, names),
    )


def _serving(record: ServerRecord, project: Project) -> ServerRecord:
    if project.name not in record.projects:
        raise Busy(
            f"the server at {record.url} (pid {record.pid}) serves {', '.join(record.projects)}, "
            f"not {project.name}: stop it, or use another FLYWHEEL_HOME"
        )
    return record


def _wait_for(
    home: Home, project: Project, child: subprocess.Popen[bytes], log: Path, begin: int
) -> ServerRecord:
    while True:
        record = running(home)
        if record is not None and (record.pid == child.pid or child.poll() is not None):
            return _serving(record, project)
        if child.poll() is not None and not being_served(home):
            said = log.read_bytes()[begin:].decode("utf-8", "replace").strip()
            raise EngineError(f"no server could be started: {said[-2000:]} ({log})")
        time.sleep(0.05)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(DRAIN_S + 20)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdin is not None:
        child.stdin.close()


def _environment(home: Home, settings: Settings) -> dict[str, str]:
    """What makes the child's settings those of this process."""
    return {**settings.environment(), "FLYWHEEL_HOME": str(home.root)}


def main(arguments: list[str] | None = None) -> int:
    children.follow_parent()
    parser = argparse.ArgumentParser(prog="serving.server", description=__doc__)
    parser.add_argument("--project", type=Path, action="append", required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--host")
    given = parser.parse_args(arguments)
    settings = load()
    quiet_dependencies(settings.at())
    try:
        projects = [load_project(folder) for folder in given.project]
        serve(settings.at(), projects, settings, port=given.port, host=given.host)
    except FlywheelError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

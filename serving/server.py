"""The server of one home: the engine as a child, the gateway in front, and their one life.

`serve` runs until it is told to stop, then finishes its streams, stops the engine and syncs the
journal. `ensure` gives whoever needs a server the running one, or one of its own for as long.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import uvicorn
import uvloop

from flywheel import children
from flywheel.errors import Busy, EngineError, FlywheelError, MissingPart
from flywheel.home import Home
from flywheel.progress import report
from flywheel.project import Project, base_folder, load_project
from flywheel.settings import Settings, load, quiet_dependencies
from serving import routing
from serving.engines.reach import write_access
from serving.engines.table import ENGINES
from serving.gateway import Gateway
from serving.keeper import EngineChild, Keeper, adapters_of
from serving.keys import Keys, check_host, keys_of
from serving.limits import limits_of
from serving.listening import Listening, Web, listen
from serving.presence import ServerRecord, announce, being_served, only_server, withdraw
from serving.presence import running as running
from serving.realign import realign
from serving.state import EngineState
from serving.terms import Terms

_log = logging.getLogger("flywheel.server")
_DRAIN_S = 30
"""How long streams may go on after we were told to stop."""
Reconcile = Callable[[Home, str], None]
"""Brings everything else in line with the routing file; gets the engine's URL."""


def serve(
    home: Home,
    project: Project,
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
        port: of the gateway; 0 = a free one; None = the project's.
        reconcile: is called before the first request is let in.
        engine: not started yet; None = the one that the project names.
        ready: is told once requests are answered.

    Raises:
        Busy: another server has this home, or the port is taken.
        UsageError: the host is open to others and there are no keys.
        EngineError: the engine does not start.
    """
    host = host or project.serving.host
    keys = keys_of(settings)
    check_host(host, keys)
    with only_server(home), listen(host, project.serving.port if port is None else port) as at:
        engine = engine or _engine_of(home, project, settings)
        life = _Life(home, project, settings, keys, at, engine, reconcile, ready)
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


def _engine_of(home: Home, project: Project, settings: Settings) -> EngineChild:
    """FLYWHEEL_ENGINE or `--engine` go before the project's own word."""
    name = settings.engine or project.serving.engine
    return ENGINES[name](
        home,
        base_model_of(project, settings),
        project.serving,
        settings,
        lambda: adapters_of(home, frozenset({project.name})),
    )


class _Life:
    """One run of the server, from the first socket to the last byte of the journal."""

    def __init__(
        self,
        home: Home,
        project: Project,
        settings: Settings,
        keys: Keys,
        listening: Listening,
        engine: EngineChild,
        reconcile: Reconcile,
        ready: Callable[[ServerRecord], None] | None,
    ) -> None:
        self.home, self.project, self.settings = home, project, settings
        self.listening, self.reconcile, self.ready = listening, reconcile, ready
        self.projects = frozenset({project.name})
        state = EngineState()
        self.keeper = Keeper(home, self.projects, engine, state)
        self.gateway = Gateway(
            home,
            self.projects,
            limits=limits_of(project.serving),
            keys=keys,
            engine=state,
            terms=Terms([project]),
        )

    async def run(self) -> None:
        stop = asyncio.Event()
        web = Web(
            uvicorn.Config(
                self.gateway.application,
                http="httptools",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=_DRAIN_S,
                backlog=1024,
            )
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _told, stop, web)
        serving = asyncio.create_task(web.serve([self.listening]))
        keeping = asyncio.create_task(self._keep())
        try:
            waiting = {serving, keeping, asyncio.create_task(stop.wait())}
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if keeping in done and not stop.is_set():
                await keeping
        finally:
            withdraw(self.home)
            web.should_exit = True
            try:
                await serving
            finally:
                keeping.cancel()
                await self.keeper.stop()
                await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self) -> None:
        await self.keeper.start()
        await asyncio.to_thread(_route_base, self.home, self.project, self.settings)
        engine_url, access = self.keeper.engine.url, self.keeper.engine.access
        self.gateway.upstream.point_to(engine_url, access.key)
        write_access(self.home, access)
        await asyncio.to_thread(self.reconcile, self.home, engine_url)
        self.keeper.state.phase = "ready"
        record = announce(self.home, self.listening.url, engine_url, self.projects, access)
        report("serving", 1, 1, f"{self.project.name} at {record.url}/v1")
        if self.ready is not None:
            self.ready(record)
        await self.keeper.keep()


def _told(stop: asyncio.Event, web: uvicorn.Server) -> None:
    """The first time we finish what runs; the second time we do not."""
    web.force_exit = stop.is_set()
    stop.set()


def _route_base(home: Home, project: Project, settings: Settings) -> None:
    """A project that nothing serves yet is served by its base model: deployment 0."""
    from storage.inbox import Inbox

    base = str(base_folder(project, settings.models))
    while project.name not in (now := routing.read(home)).projects:
        deployment = routing.base_deployment(project.name, base)
        route = routing.ProjectRoute(project=project.name, base_model=base, champion=deployment)
        Inbox(home).append([deployment], name=f"deployment:{deployment.name}")
        with contextlib.suppress(Busy):
            routing.replace(
                home,
                msgspec.structs.replace(now, projects={**now.projects, project.name: route}),
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
        child.wait(_DRAIN_S + 15)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdin is not None:
        child.stdin.close()


def _environment(home: Home, settings: Settings) -> dict[str, str]:
    """What makes the child's settings those of this process."""
    secret = {"keys": settings.keys, "engine_key": settings.engine_key}
    values = settings.model_dump(exclude={"failpoint", "home", *secret}, exclude_none=True)
    values |= {name: value.get_secret_value() for name, value in secret.items() if value}
    given = {f"FLYWHEEL_{name.upper()}": str(value) for name, value in values.items()}
    return {**given, "FLYWHEEL_HOME": str(home.root)}


def main(arguments: list[str] | None = None) -> int:
    children.follow_parent()
    parser = argparse.ArgumentParser(prog="serving.server", description=__doc__)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--host")
    given = parser.parse_args(arguments)
    settings = load()
    quiet_dependencies(settings.at())
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        project = load_project(given.project)
        serve(settings.at(), project, settings, port=given.port, host=given.host)
    except FlywheelError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

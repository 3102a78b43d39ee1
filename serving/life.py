"""One run of the server: the engine as its child, the gateway processes in front, and their one
life, from the first socket to the last byte of the journal.
"""

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import Callable, Sequence
from typing import Any

from flywheel.errors import FlywheelError
from flywheel.home import Home
from flywheel.progress import report
from flywheel.project import Project, load_project
from serving import routing
from serving.board import Board
from serving.control import Engine
from serving.engines.reach import write_access
from serving.keeper import EngineChild, Keeper
from serving.listening import Listening
from serving.logs import RequestLog
from serving.metrics import Metrics
from serving.observing import Observers
from serving.presence import ServerRecord, announce, withdraw
from serving.reloading import Reloading
from serving.spans_out import SpansOut
from serving.state import EngineState
from serving.terms import Terms
from serving.watch import Watch
from serving.worker import DRAIN_S
from serving.workers import Workers

_TELL_S = 0.25
Step = Callable[[str], None]
"""Gets the engine's URL."""


class Life:
    def __init__(
        self,
        home: Home,
        projects: Sequence[Project],
        listening: Listening,
        engine: EngineChild,
        environment: dict[str, str],
        begin: Step,
        settle: Step,
        ready: Callable[[ServerRecord], None] | None,
    ) -> None:
        """
        Args:
            environment: what makes the settings of the gateway processes those of this one.
            begin: must be done before the first request is let in.
            settle: what of that follows each change that the guard rails decide.
        """
        self.home, self.listening, self.ready = home, listening, ready
        self.begin, self.settle = begin, settle
        self.names = frozenset(project.name for project in projects)
        self.state = EngineState()
        self.keeper = Keeper(home, self.names, engine, self.state)
        self.metrics, self.observers = Metrics(), Observers()
        first = projects[0].serving
        self.observers.add(RequestLog(first.log).hear)
        self.spans = SpansOut(first.otlp_traces) if first.otlp_traces else None
        if self.spans is not None:
            self.observers.add(self.spans.hear)
        self.reloading = Reloading(projects)
        self.projects, self.terms = projects, Terms(projects)
        self.watch = Watch(
            home,
            self.names,
            lambda project: self.terms.of(project).release,
            self._settle,
        )
        self.observers.add(self.watch.hear)
        self.workers = Workers(
            home,
            [project.folder for project in projects],
            environment,
            listening,
            Board(self.metrics),
            self.observers.tell,
            count=first.workers,
        )
        self.workers.health = self._health

    async def run(self) -> None:
        """
        Raises:
            EngineError: engine or gateway do not start.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told, stop)
        loop.add_signal_handler(signal.SIGHUP, self.reloading.now)
        living = asyncio.create_task(self._live())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({living, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                await living
        finally:
            withdraw(self.home)
            living.cancel()
            stopping.cancel()
            try:
                await self.workers.stop(DRAIN_S + 5)
            finally:
                await self.keeper.stop()
                if self.spans is not None:
                    await asyncio.to_thread(self.spans.close)
                await asyncio.gather(living, return_exceptions=True)

    def _told(self, stop: asyncio.Event) -> None:
        """The first time we finish what runs; the second time we do not."""
        if stop.is_set():
            self.workers.terminate()
        stop.set()

    async def _live(self) -> None:
        await self.workers.start()
        parts = [
            asyncio.create_task(part)
            for part in (
                self.workers.keep(),
                self._tell(),
                self._answer(),
                self.reloading.keep(self._reload),
                self.watch.keep(),
            )
        ]
        try:
            await next(asyncio.as_completed(parts))  # none of them ends but by an error
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _answer(self) -> None:
        await self.keeper.start()
        url, access = self.keeper.engine.url, self.keeper.engine.access
        write_access(self.home, access)
        await asyncio.to_thread(self.begin, url)
        self.state.phase = "ready"
        await self.workers.know(self._engine())
        record = announce(
            self.home, self.listening.url, url, self.names, access, self.listening.certificate
        )
        report("serving", 1, 1, f"{', '.join(sorted(self.names))} at {record.url}/v1")
        if self.ready is not None:
            self.ready(record)
        await self.keeper.keep()

    def _settle(self) -> None:
        """What was decided without MLflow is told to it; while the engine is away it waits."""
        if self.state.phase == "ready":
            self.settle(self.keeper.engine.url)

    def _reload(self) -> None:
        with contextlib.suppress(FlywheelError):  # written again since it was found sound
            self.terms.replace([load_project(one.folder) for one in self.projects])
        self.workers.reload()

    async def _tell(self) -> None:
        """Lets the gateway processes know the engine as it is, some times a second."""
        while True:
            engine = self._engine()
            self.workers.tell_engine(engine)
            self.metrics.engine(engine.state)
            await asyncio.sleep(_TELL_S)

    def _engine(self) -> Engine:
        engine = self.keeper.engine
        state = dataclasses.replace(self.state)
        return Engine(state=state, urls=engine.urls, key=engine.access.key)

    def _health(self) -> dict[str, Any]:
        """What the server adds to what the gateway processes say of themselves."""
        with contextlib.suppress(FlywheelError):
            routed = routing.read(self.home)
            self.metrics.serves(
                routing=routed.version,
                shares={name: route.share for name, route in routed.projects.items()},
                worker_restarts=self.workers.restarts,
            )
        return {
            "worker_restarts": self.workers.restarts,
            "configuration": {"problem": self.reloading.problem},
        }

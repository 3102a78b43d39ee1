"""The engine's child process as the gateway should see it: started, watched, ready or not.

The process starts itself again when it dies, with the adapters that `adapters_of` names at that
moment. Invariant: the state is `ready` only while the engine runs and has every champion, loaded
and checked.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from flywheel.errors import CorruptFile, EngineError
from flywheel.home import Home
from flywheel.lineage import Deployment
from serving.engines.client import EngineClient
from serving.engines.reach import Access
from serving.routing import is_external, read, served_as, standing
from serving.state import EngineState
from serving.verify import check_files

_log = logging.getLogger("flywheel.server")
_LOOK_S = 0.25
_SILENT_PULSES = 12
"""Unanswered questions in a row, of up to five seconds each, after which an engine hangs."""


class EngineChild(Protocol):
    """What is asked of an engine: our own process, or one that somebody else runs."""

    @property
    def restarts(self) -> int: ...
    @property
    def last_error(self) -> str | None: ...
    @property
    def urls(self) -> tuple[str, ...]:
        """Of each that serves now, where it is several."""

    @property
    def url(self) -> str: ...
    @property
    def access(self) -> Access: ...
    @property
    def alive(self) -> bool:
        """Whether it runs now, ready or not."""

    @property
    def settled(self) -> bool:
        """Whether what it must serve was loaded and checked, or failed to, since its last start."""

    @property
    def lacking(self) -> Mapping[str, str]:
        """What it must serve and does not, and why."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def revive(self) -> None:
        """For one that lives and cannot answer: brings a start about, where that is ours to do."""


def adapters_of(home: Home, projects: frozenset[str]) -> Mapping[str, Path]:
    """What the engine must have loaded, by name: of each project champion, previous, challenger.
    Weights that changed on disk since they were checked are not among them."""
    routes = [route for name, route in read(home).projects.items() if name in projects]
    return {
        one.name: home.path(one.adapter)
        for route in routes
        for one in standing(route)
        if one.adapter is not None and _sound(home, one) is None
    }


def _sound(home: Home, deployment: Deployment) -> str | None:
    """None = its weights are what was trained; otherwise what is wrong with them."""
    try:
        check_files(home, deployment)
    except CorruptFile as error:
        _log.error("%s is not loaded: %s", deployment.name, error)
        return str(error)
    return None


class Keeper:
    def __init__(
        self,
        home: Home,
        projects: frozenset[str],
        engine: EngineChild,
        state: EngineState,
        *,
        pulse_s: float = 5.0,
    ) -> None:
        self._home, self._projects, self.engine, self.state = home, projects, engine, state
        self._pulse_s, self._silent = pulse_s, 0

    async def start(self) -> None:
        """
        Raises:
            EngineError: it does not start, or has not loaded what must serve.
        """
        await asyncio.to_thread(self.engine.start)
        missing = await asyncio.to_thread(self._missing)
        if missing:
            why = await asyncio.to_thread(self._why)
            raise EngineError(
                f"the engine could not load {', '.join(missing)}: {why}. "
                "`flywheel rollback PROJECT` puts the deployment before it back"
            )

    async def keep(self) -> None:
        """Until it is cancelled: lets the state follow the process."""
        pulse = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            engine = self.engine
            gone = not engine.alive or engine.restarts != self.state.restarts
            if gone or not engine.settled or self.state.phase != "ready":
                await self._look()
            elif time.monotonic() - pulse >= self._pulse_s:
                await self._feel_pulse()
                pulse = time.monotonic()

    async def _feel_pulse(self) -> None:
        """A process that lives and cannot answer is ended, so that it is started again."""
        try:
            failed = await asyncio.to_thread(self._failed)
            self._silent = 0
        except EngineError as error:
            self._silent += 1
            failed = self._silent >= _SILENT_PULSES
            _log.warning("the engine does not answer (%s in a row): %s", self._silent, error)
        if failed and self.engine.alive:
            _log.error("the engine lives but cannot answer: it must be started again")
            self._silent = 0
            self.engine.revive()

    def _failed(self) -> bool:
        with EngineClient(self.engine.url, timeout_s=5, access=self.engine.access) as client:
            said = client.health()
            self._note(said)
            self.state.load = None
            with contextlib.suppress(EngineError):  # one that answers and does not say
                self.state.load = client.load()
            return bool(said.get("status") == "failed")

    async def stop(self) -> None:
        self.state.phase = "stopping"
        await asyncio.to_thread(self.engine.stop)

    async def _look(self) -> None:
        # The count first: a restart during the look is seen by the next one.
        restarts, running = self.engine.restarts, self.engine.alive
        missing = None
        settled = running and self.engine.settled
        self.state.phase = "restarting"
        if settled:
            try:
                missing = await asyncio.to_thread(self._missing)
            except EngineError as error:
                self.state.reason = str(error)
        if missing == []:
            self.state.phase, self.state.reason = "ready", None
            self.state.restarts = restarts
        else:
            reason = self.engine.last_error or self.state.reason
            if missing and reason is None:
                reason = await asyncio.to_thread(self._why)
            self.state.reason = reason

    def _why(self) -> str | None:
        """Why champions are missing."""
        routes = read(self._home).projects.values()
        damage = [_sound(self._home, one.champion) for one in routes]
        return next(filter(None, damage), self.engine.last_error)

    def _missing(self) -> list[str]:
        """Champions that the engine does not have, or has and has not been seen to serve right."""
        routes = read(self._home).projects
        champions = [routes[name].champion for name in self._projects if name in routes]
        champions = [champion for champion in champions if not is_external(champion)]
        with EngineClient(self.engine.url, timeout_s=5, access=self.engine.access) as client:
            if not client.ready():
                raise EngineError("the engine is loading")
            self._note(client.health())
            known = client.models()
        there = set(known) - set(self.engine.lacking)
        return [champion.name for champion in champions if served_as(champion) not in there]

    def _note(self, said: dict[str, Any]) -> None:
        """Which template and tokenizer answers come from; vLLM's are known a moment after it is
        ready."""
        self.state.lacking = dict(self.engine.lacking)
        self.state.template_digest = said.get("template_digest")
        self.state.tokenizer_digest = said.get("tokenizer_digest")

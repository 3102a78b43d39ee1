"""Runtimes for many episodes at once, no more of them than the machine bears.

Enter: a configuration, a folder, how many. Leave: runtimes, each fresh and for one use. Invariant:
what the machine did wrong is tried again a few times, a little later each; what a program did
wrong never is. A runtime that failed is thrown away.
"""

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from environments.runtimes.contract import Runtime, RuntimeConfig, RuntimeFailure
from environments.runtimes.table import open_runtime
from flywheel.ids import new_ulid

Result = TypeVar("Result")
_TRIES = 4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


@dataclass
class Counts:
    waiting: int = 0
    """Who waits for a runtime now: the queue's depth."""
    deepest: int = 0
    """The most that ever waited."""
    running: int = 0
    started: int = 0
    failed: int = 0
    """Faults of the machine that were met, tried again or not."""
    retried: int = 0


class Pool:
    def __init__(
        self, config: RuntimeConfig, folder: Path, at_once: int = 8, *, tries: int = _TRIES
    ) -> None:
        self.config, self.folder, self.tries = config, folder, tries
        self.counts = Counts()
        self._places = asyncio.Semaphore(at_once)

    @contextlib.asynccontextmanager
    async def runtime(self) -> AsyncIterator[Runtime]:
        """A fresh one; its folder is gone afterwards.

        Raises:
            RuntimeFailure: none could be started, after all tries.
        """
        async with self._place():
            runtime = await self._retried(self._start)
            try:
                yield runtime
            except RuntimeFailure:
                self.counts.failed += 1
                raise
            finally:
                await _end(runtime)

    async def run(self, work: Callable[[Runtime], Awaitable[Result]]) -> Result:
        """What `work` makes of a runtime; after a fault of the machine, of a fresh one.

        Raises:
            RuntimeFailure: it failed at every try.
        """

        async def once() -> Result:
            runtime = await self._start()
            try:
                return await work(runtime)
            finally:
                await _end(runtime)

        async with self._place():
            return await self._retried(once)

    def metrics(self) -> dict[str, int]:
        return asdict(self.counts)

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        counts = self.counts
        counts.waiting += 1
        counts.deepest = max(counts.deepest, counts.waiting)
        try:
            await self._places.acquire()
        finally:
            counts.waiting -= 1
        counts.running += 1
        try:
            yield
        finally:
            counts.running -= 1
            self._places.release()

    async def _retried(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        for number in range(self.tries):
            try:
                return await attempt()
            except RuntimeFailure:
                self.counts.failed += 1
                if number + 1 == self.tries:
                    raise
                self.counts.retried += 1
                pause = min(_FIRST_PAUSE_S * 2**number, _LONGEST_PAUSE_S)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        raise AssertionError

    async def _start(self) -> Runtime:
        runtime = open_runtime(self.config, self.folder / new_ulid())
        try:
            await runtime.start()
        except BaseException:
            await _end(runtime)
            raise
        self.counts.started += 1
        return runtime


async def _end(runtime: Runtime) -> None:
    """A workspace that cannot be removed is no reason to lose what was done in it."""
    with contextlib.suppress(RuntimeFailure):
        await runtime.stop()
    shutil.rmtree(runtime.folder, ignore_errors=True)

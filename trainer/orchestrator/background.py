"""What a run does beside its loop: tasks whose first fault ends the run, and who wakes the loop."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """Something happened that may allow more."""
        self._fault: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lasting: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        """Whether all that was to end has ended."""
        return self._tasks <= self._lasting

    def spawn(self, work: Coroutine[Any, Any, None], *, lasting: bool = False) -> None:
        """`lasting`: it has no end of its own; the run does not wait for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        if lasting:
            self._lasting.add(task)
        task.add_done_callback(self._over)

    def fail(self, fault: BaseException) -> None:
        self._fault = self._fault or fault
        self.changed.set()

    def check(self) -> None:
        """Raises the first fault, if there was one."""
        if self._fault is not None:
            raise self._fault

    async def end(self) -> None:
        """Nothing of it goes on."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self.fail(fault)
        self.changed.set()

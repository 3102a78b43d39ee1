"""What time it is: always the event loop's own clock, which is the real one or a virtual one.

`run_virtually(main)` runs a coroutine on a loop whose time jumps to the next timer instead of
waiting for it: hours of scheduling take seconds, and each run of the same program is the same.
Only for what waits on timers alone: threads, processes and sockets take real time, which does not
pass there.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class _Jumping(selectors.DefaultSelector):
    """A selector that never waits: it moves its time on by as long as it was asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("every task waits and no timer is set: nothing can ever happen")
        self.now += max(timeout, 0.0)
        return ready


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """
    Raises:
        RuntimeError: all tasks wait for each other.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)

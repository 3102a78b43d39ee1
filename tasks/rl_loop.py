"""The event loop that all runs of this process have in common, in a thread of its own.

Runs that sample from one engine share its slots, which belong to one loop: so whoever trains one,
in whatever thread, has it played here. The loop begins with the first run and ends with the last.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from trainer.orchestrator.sharing import Slots

T = TypeVar("T")
PARTING_S = 60.0
"""For the clean-ups of a run that is interrupted, and for a loop that something blocks."""
_log = logging.getLogger("flywheel.rl")


class Shared:
    def __init__(self, parting_s: float = PARTING_S) -> None:
        self._parting_s = parting_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="runs", daemon=True)
        self._thread.start()
        self._slots: dict[str, Slots] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for what `work` gives; who is interrupted here ends it, with its clean-ups."""
        ended = threading.Event()

        async def whole() -> T:
            try:
                return await work
            finally:
                ended.set()

        done = asyncio.run_coroutine_threadsafe(whole(), self._loop)
        try:
            return done.result()
        except BaseException:
            done.cancel()
            ended.wait(self._parting_s)
            raise

    def slots(self, engine: str, ceiling: int) -> "Slots":
        """The engine's, as many as the run that wants most takes. Called in the loop."""
        from trainer.orchestrator.sharing import Slots

        found = self._slots.setdefault(engine, Slots(ceiling))
        if ceiling > found.ceiling:
            found.ceiling = ceiling
            found.resize(ceiling)
        return found

    def close(self) -> None:
        """An environment whose async code never waits blocks the loop: it is left behind, with its
        thread, which ends with the process."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self._parting_s)
        if self._thread.is_alive():
            _log.error("the runs' event loop is blocked, as by async code that calls time.sleep")
            return
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


_lock = threading.Lock()
_open: list[Shared] = []
_users: list[object] = []


@contextlib.contextmanager
def shared() -> Iterator[Shared]:
    """The loop, while the block lasts."""
    me = object()
    with _lock:
        if not _open:
            _open.append(Shared())
        _users.append(me)
        loop = _open[0]
    try:
        yield loop
    finally:
        with _lock:
            _users.remove(me)
            last = [] if _users else [_open.pop()]
        for one in last:
            one.close()

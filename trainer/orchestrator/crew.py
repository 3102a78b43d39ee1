"""Who plays: workers, whether they live, how much each engine takes, and which attempt each has.

A worker that misses heartbeats is dead: what it played is handed back at once, whatever becomes of
its calls, and it gets nothing until it beats again. One that fails a rollout is asked at once, and
gets nothing before it has answered: what plays as an engine ends costs each rollout one try, not
all. One that fails what others play is rested.
Invariant: an attempt ends once, by its result, its failure, its stop or its worker's death.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flywheel.errors import EngineError
from trainer.orchestrator.concurrency import adapted
from trainer.orchestrator.contract import Attempt, Played, Player
from trainer.orchestrator.sharing import Slots

BEAT_S = 5.0
"""Between two heartbeats of a worker."""
MISSED = 3
"""Heartbeats in a row until a worker is dead."""
SILENT_S = 30.0
"""Without an answer to one, which is as bad."""
ANSWER_S = 90.0
"""What the answer may take: a worker may be bringing its engine back."""
GONE_S = 600.0
"""Without one living worker, until the run gives up."""
RESTED_AFTER = 3
"""Failures of a worker in a row until it rests, if there is another."""
REST_S = 60.0
LOST = (EngineError, ConnectionError, TimeoutError)
"""Infrastructure: another try may succeed."""

T = TypeVar("T")
Key = tuple[str, int, int]
Ended = Callable[[Attempt, Played | BaseException], None]


@dataclass
class Worker:
    player: Player
    slots: Slots
    playing: dict[Key, tuple[Attempt, asyncio.Task[Played]]] = field(default_factory=dict)
    missed: int = 0
    """Heartbeats in a row."""
    failures: int = 0
    """Rollouts in a row."""
    rests_until: float = 0.0
    doubted: asyncio.Event = field(default_factory=asyncio.Event)
    """It failed a rollout, and has not beaten since."""

    @property
    def dead(self) -> bool:
        return self.missed >= MISSED

    def fit(self, now: float) -> bool:
        """Whether it may be given a rollout."""
        return not self.dead and not self.doubted.is_set() and self.rests_until <= now


class Crew:
    def __init__(
        self,
        players: Sequence[Player],
        shared: Mapping[str, Slots],
        slots: int,
        run: str,
        *,
        ended: Ended,
        woken: Callable[[], None],
    ) -> None:
        """`shared`: player's name -> its engine's slots, where other runs sample from it too."""
        self.run, self._ended, self._woken = run, ended, woken
        self.workers = [Worker(one, shared.get(one.name) or Slots(slots)) for one in players]
        self._slots = list({id(one.slots): one.slots for one in self.workers}.values())
        self._alone_since: float | None = None
        self._left: set[asyncio.Task[Played]] = set()
        """Cancelled, and not ended yet."""

    def join(self) -> None:
        for one in self._slots:
            one.join(self.run, self._woken)

    def leave(self) -> None:
        """All that plays is stopped, and nothing more is heard of it."""
        for worker in self.workers:
            for attempt, _ in list(worker.playing.values()):
                self._parted(worker, attempt)
        for one in self._slots:
            one.leave(self.run)

    async def left(self, seconds: float) -> None:
        """Waits so long for what was stopped to end."""
        if self._left:
            await asyncio.wait(self._left, timeout=seconds)

    # --- playing

    @property
    def playing(self) -> int:
        return sum(len(worker.playing) for worker in self.workers)

    @property
    def capacity(self) -> int:
        """Rollouts that the living engines take together, other runs' with them."""
        living = {id(one.slots): one.slots.limit for one in self.workers if not one.dead}
        return sum(living.values())

    def seat(self) -> Worker | None:
        """A worker with a slot, which is taken; None = there is none to be had now."""
        now = asyncio.get_running_loop().time()
        fit = [one for one in self.workers if one.fit(now)]
        fit.sort(key=lambda one: (one.failures > 0, len(one.playing) / one.slots.limit))
        return next((one for one in fit if one.slots.take(self.run)), None)

    def want(self, wants: bool) -> None:
        """Nobody waits for a share of an engine that this run could not use."""
        now = asyncio.get_running_loop().time()
        fit = {id(one.slots) for one in self.workers if one.fit(now)}
        for one in self._slots:
            one.want(self.run, wants and id(one) in fit)

    def start(self, worker: Worker, attempt: Attempt, version: int) -> None:
        task = asyncio.create_task(_play(worker.player, attempt, version))
        worker.playing[attempt.key] = attempt, task
        task.add_done_callback(lambda task: self._over(worker, attempt, task))

    def stop(self, attempt: Attempt) -> None:
        """Its slot is free; nothing more is heard of it."""
        for worker in self.workers:
            if attempt.key in worker.playing:
                self._parted(worker, attempt)
                worker.slots.free(self.run)

    def _over(self, worker: Worker, attempt: Attempt, task: asyncio.Task[Played]) -> None:
        error = None if task.cancelled() else task.exception()
        if attempt.key not in worker.playing:
            return
        del worker.playing[attempt.key]
        if task.cancelled():
            error = EngineError(f"{worker.player.name} gave up rollout {attempt.k}")
        failed = isinstance(error, LOST)
        worker.failures = worker.failures + 1 if failed else 0
        if failed:
            worker.doubted.set()
        if failed and worker.failures >= RESTED_AFTER and len(self.workers) > 1:
            loop = asyncio.get_running_loop()
            worker.rests_until = loop.time() + REST_S
            loop.call_at(worker.rests_until, self._woken)
        worker.slots.free(self.run, 0 if error else task.result().tokens)
        self._ended(attempt, error or task.result())

    def _parted(self, worker: Worker, attempt: Attempt) -> None:
        _, task = worker.playing.pop(attempt.key)
        self._left.add(task)
        task.add_done_callback(self._left.discard)
        task.cancel()

    # --- heartbeats

    async def watch(self, worker: Worker) -> None:
        """Until it is cancelled.

        Raises:
            EngineError: no worker has lived for long.
        """
        while True:
            if not worker.dead and not worker.missed:
                await _set(worker.doubted, BEAT_S)
            else:
                await asyncio.sleep(BEAT_S)
            if await self._beats(worker):
                back, worker.missed = worker.dead or worker.doubted.is_set(), 0
                worker.doubted.clear()
                if back:
                    self._woken()
                await _weigh(worker)
            else:
                self._miss(worker, worker.missed + 1)
            self._check()

    async def _beats(self, worker: Worker) -> bool:
        beat = asyncio.create_task(_answer(worker.player.beat()))
        try:
            done, _ = await asyncio.wait({beat}, timeout=SILENT_S)
            if not done:
                self._miss(worker, MISSED)
            return bool(await beat)
        finally:
            beat.cancel()

    def _miss(self, worker: Worker, missed: int) -> None:
        """A worker that dies of it hands back what it plays."""
        was, worker.missed = worker.dead, missed
        if worker.dead and not was:
            why = EngineError(f"{worker.player.name} gives no sign of life")
            for attempt, _ in list(worker.playing.values()):
                self._parted(worker, attempt)
                worker.slots.free(self.run)
                self._ended(attempt, why)

    def _check(self) -> None:
        now = asyncio.get_running_loop().time()
        if not all(one.dead for one in self.workers):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= GONE_S:
            names = ", ".join(one.player.name for one in self.workers)
            raise EngineError(
                f"no engine has answered for {GONE_S:.0f} s ({names}): start it again, and the run "
                "goes on from where it is"
            )


async def _play(player: Player, attempt: Attempt, version: int) -> Played:
    return await player.play(attempt, version)


async def _set(event: asyncio.Event, seconds: float) -> None:
    """Waits for it, so long at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _weigh(worker: Worker) -> None:
    load = await _answer(worker.player.load())
    if load is not None:
        worker.slots.resize(adapted(worker.slots, load))


async def _answer(question: Coroutine[Any, Any, T]) -> T | None:
    """None = there was none."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await question
    except LOST:
        return None

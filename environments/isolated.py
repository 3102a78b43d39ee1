"""The inside of a grading child: calls every reward that it is given, and writes what they gave.

Enter: lanes of calls, each in its order (they share `state` or a runtime). Leave: outcomes on the
board. Invariants: what a reward does wrong is its own null; lanes that wait (for judges, sandboxes)
wait together, the others run one by one; a process that a reward forked off goes no further.
"""

import asyncio
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from environments.board import LOST, Board, Outcome
from environments.marks import Method, Ungraded
from environments.offered import CHANGED, PLAIN, Call, Offer, outcomes_of, reason_of

if TYPE_CHECKING:
    from environments.define import Environment
    from environments.runtimes.pool import Pool

AT_ONCE = 32
"""Lanes that wait together."""
SANDBOXES = max(2, os.cpu_count() or 1)
"""Of those, how many have a sandbox of their own: programs need a processor each."""
GIVE_UP = 3
"""After so many hangs or deaths of one reward in a batch, the rest of it is not tried."""
_BEAT_S = 0.1
Lane = Sequence[Call]


def limit_of(environment: "Environment", call: Call) -> float:
    """Seconds; a judge says how long its own limits let it take."""
    limit = environment.long_limit_s if call.method.slow else environment.limit_s
    return max(limit, len(call.slots) * getattr(call.judge, "limit_s", 0.0))


def given_up(method: Method) -> str:
    return f"not tried: {method.name} hung or died {GIVE_UP} times before"


def after_loss(call: Call) -> str:
    return f"{call.method.name}, which it shares its state with, hung or died"


class Inside(NamedTuple):
    """What the child knows."""

    environment: "Environment"
    board: Board
    lost: Counter[str]
    folder: Path
    """Where sandboxes get their folders; the parent removes it."""

    def serve(self, lanes: Sequence[Lane]) -> None:
        waiting = [lane for lane in lanes if any(self._waits(call) for call in lane)]
        apart = {id(lane) for lane in waiting}
        offer: Offer | None = None
        for lane in lanes:
            if id(lane) not in apart:
                offer = Offer(lane[0].trace, lane[0].problem, offer)
                for call in lane:
                    self._run(call, offer)
        if waiting:
            asyncio.new_event_loop().run_until_complete(self._serve_together(waiting))

    def _waits(self, call: Call) -> bool:
        return inspect.iscoroutinefunction(getattr(self.environment, call.method.name))

    def _run(self, call: Call, offer: Offer) -> None:
        """A plain method. What it changes in the traces is its own fault, whatever it returned."""
        own = os.getpid()
        self.board.enter(call.at)
        try:
            value = getattr(self.environment, call.method.name)(**offer.arguments(call))
            if type(value) not in PLAIN and inspect.isawaitable(value):
                value = asyncio.new_event_loop().run_until_complete(_awaited(value))
            outcomes = _checked(call, offer, value)
        except BaseException as error:
            outcomes = [Outcome(None, reason_of(error))] * len(call.slots)
        if os.getpid() != own:
            os._exit(0)
        self._give(call, offer.as_heard(outcomes))

    def _give(self, call: Call, outcomes: Iterable[Outcome]) -> None:
        for slot, outcome in zip(call.slots, outcomes, strict=True):
            self.board.give(slot, outcome)

    # --- lanes that wait -----------------------------------------------------------------------

    async def _serve_together(self, lanes: Sequence[Lane]) -> None:
        beating = asyncio.create_task(self._beat())
        left, boxes = iter(lanes), self._boxes()

        async def work() -> None:
            for lane in left:
                await self._run_lane(lane, boxes)

        await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(lanes)))))
        beating.cancel()

    async def _beat(self) -> None:
        while True:
            self.board.beat()
            await asyncio.sleep(_BEAT_S)

    async def _run_lane(self, lane: Lane, boxes: "_Boxes") -> None:
        offer = Offer(lane[0].trace, lane[0].problem)
        for number, call in enumerate(lane):
            if tried := self.lost[call.method.name] < GIVE_UP:
                await self._wait_for(call, offer, boxes)
            else:
                self._give(call, [Outcome(None, given_up(call.method))] * len(call.slots))
            if not tried or self.board.states[call.at] == LOST:
                for later in lane[number + 1 :]:
                    self.board.give(later.at, Outcome(None, after_loss(call)))
                return

    async def _wait_for(self, call: Call, offer: Offer, boxes: "_Boxes") -> None:
        """One call within its time. One that cannot even be cancelled is left behind."""
        limit = limit_of(self.environment, call)
        if "sandbox" in call.method.arguments:
            await boxes.turn.acquire()
        self.board.enter(call.at, loop=True)
        task = asyncio.create_task(self._tried(call, offer, boxes))
        done, _ = await asyncio.wait({task}, timeout=limit)
        if "sandbox" in call.method.arguments:
            boxes.turn.release()
        if done:
            self._give(call, offer.as_heard(task.result()))
            return
        task.cancel()
        self.lost[call.method.name] += 1
        for slot in call.slots:
            self.board.lose(slot, f"took longer than {limit:g} s")

    async def _tried(self, call: Call, offer: Offer, boxes: "_Boxes") -> list[Outcome]:
        own = os.getpid()
        try:
            return _checked(call, offer, await self._value(call, offer, boxes))
        except BaseException as error:
            return [Outcome(None, reason_of(error))] * len(call.slots)
        finally:
            if os.getpid() != own:
                os._exit(0)

    async def _value(self, call: Call, offer: Offer, boxes: "_Boxes") -> Any:
        method: Callable[..., Any] = getattr(self.environment, call.method.name)
        if "sandbox" in call.method.arguments and boxes.pool is not None:
            return await boxes.pool.run(lambda one: method(**offer.arguments(call, one)))
        value = method(**offer.arguments(call))
        return await value if inspect.isawaitable(value) else value

    def _boxes(self) -> "_Boxes":
        config, pool = self.environment.runtime, None
        if config is not None:
            from environments.runtimes.pool import Pool

            pool = Pool(config, self.folder, AT_ONCE)
        return _Boxes(pool, asyncio.Semaphore(SANDBOXES))


class _Boxes(NamedTuple):
    """Sandboxes of rewards that name one. Waiting for a turn does not count as a reward's time."""

    pool: "Pool | None"
    turn: asyncio.Semaphore


def _checked(call: Call, offer: Offer, value: Any) -> list[Outcome]:
    if offer.changed(call.method):
        raise Ungraded(CHANGED)
    return outcomes_of(call, value)


async def _awaited(value: Any) -> Any:
    return await value

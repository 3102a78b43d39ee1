"""What is known of all gateway processes together: for `/health`, `/metrics` and the log.

In the server's own process it is `Board`; a gateway process asks it through `AskedBoard`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from serving.control import Asks, Channel, Heard, Said
from serving.metrics import Metrics
from serving.observing import Seen
from serving.refusal import ApiError

_WAIT_S = 5.0


class Known(Protocol):
    async def metrics(self) -> str: ...
    async def health(self) -> dict[str, Any]: ...


class Board:
    """Of processes that come and go: what one counted stays when it is gone."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._gone: Counter[str] = Counter()
        self._live: dict[int, Heard] = {}

    def hear(self, worker: int, heard: Heard) -> None:
        self._live[worker] = heard
        for seen in heard.seen:
            self._metrics.hear(seen)
        self._stand()

    def forget(self, worker: int) -> None:
        """It is gone: its counts stay, what it had in work is gone too."""
        left = self._live.pop(worker, None)
        if left is not None:
            self._gone.update(left.counts)
        self._stand()

    def _stand(self) -> None:
        self._metrics.stand(
            running=sum(one.running for one in self._live.values()),
            waiting=sum(one.waiting for one in self._live.values()),
            lag_s=max((one.lag_s for one in self._live.values()), default=0.0),
            counts=self.counts(),
        )

    def counts(self) -> Counter[str]:
        total = Counter(self._gone)
        for one in self._live.values():
            total.update(one.counts)
        return total

    async def metrics(self) -> str:
        return self._metrics.text()

    async def health(self) -> dict[str, Any]:
        problems = [one.problem for one in self._live.values() if one.problem]
        return {
            "workers": len(self._live),
            "running": sum(one.running for one in self._live.values()),
            "waiting": sum(one.waiting for one in self._live.values()),
            "counts": dict(self.counts()),
            "recording": {"problem": problems[0] if problems else None},
        }


class AskedBoard:
    """In a gateway process: `now` is how it stands, which is told before it asks how all do."""

    def __init__(self, channel: Channel, now: Callable[[], Heard]) -> None:
        self._channel, self._now = channel, now
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0

    async def metrics(self) -> str:
        return str(await self._ask("metrics"))

    async def health(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._ask("health")
        return found

    def settle(self, said: Said) -> None:
        waiting = self._asked.pop(said.number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(said.content)

    async def _ask(self, what: str) -> Any:
        self._number += 1
        number = self._number
        self._asked[number] = asyncio.get_running_loop().create_future()
        self._channel.send(self._now())
        self._channel.send(Asks(number=number, what=what))
        try:
            async with asyncio.timeout(_WAIT_S):
                return await self._asked[number]
        except TimeoutError as error:
            raise ApiError(503, "the server is busy: ask again", retry_after=1) from error
        finally:
            self._asked.pop(number, None)


class OwnBoard:
    """Of one gateway that runs alone in its process: what it hears is its own."""

    def __init__(self, board: Board, now: Callable[[tuple[Seen, ...]], Heard]) -> None:
        self._board, self._now = board, now

    def hear(self, *seen: Seen) -> None:
        self._board.hear(0, self._now(seen))

    async def metrics(self) -> str:
        self.hear()
        return await self._board.metrics()

    async def health(self) -> dict[str, Any]:
        self.hear()
        return await self._board.health()

"""Shadow: a copy of some requests is asked of another deployment, whose answer nobody sees.

Enters a request that has its turn; leaves, some time later, a trace of its own that says which one
it copies (`shadow_of`), graded like any other and never counted as what users saw. Invariant: the
request itself neither waits nor fails for it. Copies wait behind everybody else, in a bounded
queue; what does not fit, or waits for too long, is dropped and counted.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from flywheel.errors import EngineError
from flywheel.ids import new_ulid
from flywheel.lineage import Deployment
from flywheel.records import Span, Trace, trace_id
from serving.answer import Answer, understand
from serving.backends import Backends
from serving.choosing import place_of
from serving.observing import Observers
from serving.passing import recorded, why_of
from serving.recording import NotRecorded, Recording
from serving.refusal import ApiError
from serving.routed import Routed
from serving.seeing import answered

SOURCE = "shadow"
_log = logging.getLogger("flywheel.gateway")
_AT_ONCE = 4
_MOST, _MOST_BYTES = 64, 64 * 2**20
_LONGEST_S = 60.0
"""That a copy waits: what is asked later than that tells nothing of now."""
_PAUSE_S = 0.02


class Copy(NamedTuple):
    asked: Routed
    size: int
    came: float


class Shadows:
    def __init__(
        self,
        backends: Backends,
        recording: Recording,
        observers: Observers,
        others_wait: Callable[[], bool],
    ) -> None:
        """`others_wait`: whether requests of clients wait for the engine: they go first."""
        self._backends, self._recording, self._observers = backends, recording, observers
        self._others_wait = others_wait
        self._queue: asyncio.Queue[Copy] = asyncio.Queue(_MOST)
        self._bytes = 0
        self._workers: list[asyncio.Task[None]] = []

    def offer(self, asked: Routed, size: int) -> None:
        """Takes a copy, where the route wants one of this conversation; never waits."""
        route = asked.route
        if route is None or route.shadow is None or not asked.kept:
            return
        shadow = route.shadow
        sticky = asked.conversation or asked.user or asked.external_id
        if shadow == asked.deployment or place_of(sticky, shadow.name) >= route.shadow_share:
            return
        if self._bytes + size > _MOST_BYTES or self._queue.full():
            self._recording.counts["shadow_dropped"] += 1
            return
        self._bytes += size
        self._queue.put_nowait(Copy(copied(asked, shadow), size, time.monotonic()))
        if len(self._workers) < _AT_ONCE:
            self._workers.append(asyncio.create_task(self._work()))

    async def close(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._recording.counts["shadow_dropped"] += self._queue.qsize()

    async def _work(self) -> None:
        while True:
            one = await self._queue.get()
            try:
                while self._others_wait() and time.monotonic() - one.came < _LONGEST_S:
                    await asyncio.sleep(_PAUSE_S)
                if time.monotonic() - one.came < _LONGEST_S:
                    await self._ask(one.asked)
                else:
                    self._recording.counts["shadow_dropped"] += 1
            except asyncio.CancelledError:
                self._recording.counts["shadow_dropped"] += 1
                raise
            except Exception:  # one that we cannot take costs no other one its copy
                self._recording.counts["shadow_dropped"] += 1
                _log.exception("a shadow's answer could not be taken")
            finally:
                self._bytes -= one.size

    async def _ask(self, asked: Routed) -> None:
        asked.turn = time.time_ns()
        answer, failure = None, None
        try:
            async with self._backends.ask(asked) as reply:
                data = await reply.read()
            asked.first_byte = asked.last_byte = time.time_ns()
            answer, _ = understand(data)
        except (ApiError, EngineError) as error:
            failure = error
        self._record(asked, answer, failure)
        self._recording.counts["shadowed"] += 1

    def _record(self, asked: Routed, answer: Answer | None, failure: Exception | None) -> None:
        why = None if failure is None else why_of(failure)
        span: Span | None = None
        with contextlib.suppress(NotRecorded):
            span = recorded(asked, answer, why, self._recording.offload)
            self._recording.keep(
                Trace(
                    id=trace_id(asked.deployment.project, SOURCE, asked.response_id),
                    project=asked.deployment.project,
                    source=SOURCE,
                    external_id=asked.response_id,
                    origin="production",
                    spans=(span,),
                    user=asked.user,
                    tenant=asked.whose.tenant,
                    consent=asked.whose.consent,
                    expires=asked.whose.expires,
                )
            )
        self._observers.tell(answered(asked, span, answer, failure))


def copied(asked: Routed, shadow: Deployment) -> Routed:
    """The same request, for the shadow and nobody else: no key's, as whose account it is not on."""
    return msgspec.structs.replace(
        asked,
        chat=asked.chat.unstreamed(),
        deployment=shadow,
        answers=shadow.name,
        caller="",
        route=None,
        probability=None,
        response_id=f"shadow-{new_ulid().lower()}",
        conversation=None,
        root=None,
        history=None,
        parents=(),
        admitted=None,
        storing=None,
        raw=None,
        notes={"shadow_of": {"trace": asked.trace_id, "span": asked.span_id}},
    )

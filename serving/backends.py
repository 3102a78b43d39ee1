"""Who is asked for an answer: the deployment that was chosen, and where that fails, another.

Enters a routed request; leaves a reply in the chat form whose first bytes have come, from an engine
of ours or a provider: the request then names that one, and notes who failed before it. Invariant:
nothing of another's answer has reached the client before.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw

from flywheel.errors import EngineError
from flywheel.lineage import Deployment
from serving.begun import begun
from serving.breaker import Breaker, Breakers
from serving.external import External
from serving.fallbacks import in_order
from serving.limits import Limits
from serving.observing import Observers
from serving.passing import Replying
from serving.refusal import ApiError
from serving.routed import NOT_LOADED, Routed
from serving.routing import ProjectRoute, is_external, served_as
from serving.seeing import code_of, fell_back
from serving.state import EngineState
from serving.terms import Terms
from serving.upstream import NotLoaded, Upstream

_Failure = ApiError | EngineError


class Backends:
    def __init__(
        self,
        upstream: Upstream,
        counts: Counter[str],
        *,
        engine: EngineState,
        terms: Terms,
        limits: Limits,
        observers: Observers,
    ) -> None:
        self.upstream, self.counts, self.engine = upstream, counts, engine
        self.terms, self.observers = terms, observers
        self.breakers = Breakers()
        self._external = External(terms, limits)

    async def close(self) -> None:
        await self.upstream.close()
        await self._external.close()

    def must_be_there(self, chosen: Deployment, route: ProjectRoute | None) -> None:
        """
        Raises:
            ApiError: 503: the engine is away, and nobody else may answer.
        """
        if self.engine.answers:
            return
        ways = in_order(chosen, route, self.terms.of(chosen.project).serving)
        if not any(map(is_external, ways)):
            raise self.engine.refusal()

    @asynccontextmanager
    async def ask(self, asked: Routed) -> AsyncIterator[Replying]:
        """
        Raises:
            ApiError, EngineError: nobody could answer; says what the chosen one did.
        """
        async with AsyncExitStack() as stack:
            way, reply = await self._answering(asked, stack)
            with _judging(self.breakers.of(way.name)):
                yield reply

    async def _answering(self, asked: Routed, stack: AsyncExitStack) -> tuple[Deployment, Replying]:
        """The first of them that begins to answer. `stack` gets what ends its reply."""
        ways = self._ways(asked)
        failures: list[tuple[Deployment, _Failure]] = []
        while True:
            way = ways.pop(0)
            try:
                reply = await self._attempt(stack, asked, way, others=bool(ways))
                break
            except (ApiError, EngineError) as error:
                await stack.aclose()
                failures.append((way, error))
                if not ways or (way == asked.deployment and not _helps(error)):
                    self._nobody(asked, failures)
                    raise failures[0][1]  # noqa: B904 (what the chosen one did)
            except BaseException:
                # The client left while this one was asked: those before it failed all the same.
                if way != asked.deployment:
                    self._another(asked, way, failures)
                raise
        if way != asked.deployment:
            self._another(asked, way, failures)
        if is_external(way):
            asked.not_ours()
        return way, reply

    def _ways(self, asked: Routed) -> list[Deployment]:
        """Those whose circuit is closed; where none is, the chosen one all the same."""
        serving = self.terms.of(asked.deployment.project).serving
        ways = in_order(asked.deployment, asked.route, serving)
        if len(ways) == 1:
            return ways
        closed = [way for way in ways if self.breakers.of(way.name).may()] or ways[:1]
        if closed[0] != ways[0]:
            self.counts["circuit_open"] += 1
            asked.notes["circuit_open"] = ways[0].name
            if asked.route is not None and asked.route.challenger == ways[0]:
                # What was drawn for it and it cannot take counts against its release.
                self.observers.tell(fell_back(asked, _circuit_open(ways[0])))
        return closed

    async def _attempt(
        self, stack: AsyncExitStack, asked: Routed, way: Deployment, *, others: bool
    ) -> Replying:
        """Its reply, once the first bytes of an answer have come."""
        if not is_external(way) and not self.engine.answers:
            raise self.engine.refusal()
        breaker = self.breakers.of(way.name)
        breaker.begin()
        after_s = self.terms.of(way.project).serving.fallback_after_s if others else None
        with _judging(breaker):
            if after_s is None:
                reply = await self._first(stack, asked, way)
            else:
                reply = await self._in_time(stack, asked, way, after_s)
        breaker.passed()
        return reply

    async def _in_time(
        self, stack: AsyncExitStack, asked: Routed, way: Deployment, after_s: float
    ) -> Replying:
        try:
            async with asyncio.timeout(after_s):
                return await self._first(stack, asked, way)
        except TimeoutError as error:
            text = f"{way.name} gave no first byte within {after_s:g} s"
            raise ApiError(504, text, code="engine_timeout") from error

    async def _first(self, stack: AsyncExitStack, asked: Routed, way: Deployment) -> Replying:
        reply = await stack.enter_async_context(self._reply(asked, way))
        heard = reply if is_external(way) else asked.chat.heard(reply)
        return await begun(heard, streamed=asked.chat.streamed)

    def _reply(self, asked: Routed, way: Deployment) -> AbstractAsyncContextManager[Replying]:
        if is_external(way):
            return self._external.of(way).ask(asked)
        chat, name = asked.chat, served_as(way)
        return self.upstream.ask(
            chat.for_engine(name),
            lambda: chat.for_engine(name, bounded=False),
            route=chat.route,
            prefix=self._prefix(asked),
        )

    @asynccontextmanager
    async def relay(
        self, way: Deployment, route: str, fields: dict[str, Raw]
    ) -> AsyncIterator[Replying]:
        """A request that is no chat, passed through as it is to one deployment.

        Args:
            route: below the version: `/embeddings`.

        Raises:
            ApiError: it could not be asked, or refused.
        """
        if is_external(way):
            async with self._external.of(way).relay(route, fields) as reply:
                yield reply
            return
        if not self.engine.answers:
            raise self.engine.refusal()
        body = msgspec.json.encode({**fields, "model": served_as(way)})
        async with self.upstream.ask(body, route=f"/v1{route}") as reply:
            yield reply

    def _prefix(self, asked: Routed) -> bytes:
        """What requests of one conversation have in common, where it matters which replica."""
        if len(self.upstream.replicas.urls) < 2:
            return b""
        said = asked.conversation or msgspec.json.encode(asked.chat.request.messages[:2])
        return said.encode("utf-8", "surrogatepass") if isinstance(said, str) else said

    def _another(
        self, asked: Routed, way: Deployment, failures: list[tuple[Deployment, _Failure]]
    ) -> None:
        chosen = asked.deployment
        for failed, error in failures:
            seen = fell_back(asked, error)
            self.observers.tell(msgspec.structs.replace(seen, deployment=failed.name))
        asked.answered_by(way, [_told(failed, error) for failed, error in failures])
        self.counts["fell_back"] += 1
        if asked.notes.get("challenger_absent") == chosen.name:
            self.counts["challenger_absent"] += 1

    def _nobody(self, asked: Routed, failures: list[tuple[Deployment, _Failure]]) -> None:
        """The first one's failure is told with the record: the chosen one's, unless its circuit is
        open and it was not asked."""
        first = failures[0][0]
        if first != asked.deployment:
            asked.answered_by(first, [])
        if len(failures) == 1:
            return
        asked.notes["failed"] = [_told(failed, error) for failed, error in failures]
        for failed, error in failures[1:]:
            seen = fell_back(asked, error)
            self.observers.tell(msgspec.structs.replace(seen, deployment=failed.name, end="failed"))


class _judging:
    """How an attempt ended, told to its circuit breaker. A request that was wrong is answered."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ApiError) and error.code == "not_recorded":
            self._breaker.left()
        elif isinstance(error, ApiError | EngineError):
            (self._breaker.failed if _helps(error) else self._breaker.passed)()
        elif error is not None:
            self._breaker.left()


def _circuit_open(way: Deployment) -> ApiError:
    return ApiError(503, f"the circuit of {way.name} is open", code="circuit_open")


def _helps(error: _Failure) -> bool:
    """Whether another deployment could answer what this one did not."""
    return not isinstance(error, ApiError) or error.status >= 500 or error.status == 429


def _told(way: Deployment, error: _Failure) -> dict[str, str]:
    code = NOT_LOADED if isinstance(error, NotLoaded) else code_of(error) or ""
    return {"deployment": way.name, "code": code, "error": str(error)[:500]}

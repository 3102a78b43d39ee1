"""One answer's way from the engine to its client and into the record, whole or streamed.

Enters: a request that was let in. Leave: the client's bytes and the record. The gateway and the
interception say where it is asked and where its record goes; all else is the same for both.
Invariant: what a client saw the end of is recorded. The record is written after the engine's last
byte and before the client's; what broke off is recorded too, as broken off.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Protocol, TypeVar

from starlette.types import Receive, Send

from flywheel.errors import BadRecord, EngineError, FlywheelError
from flywheel.failpoints import failpoint
from flywheel.records import Message, Span
from serving import wire
from serving.answer import Answer, Rewrite, understand
from serving.capture import Asked, span_of
from serving.conversation import Offload, messages_of
from serving.dialects.chat import ChatDialect
from serving.dialects.contract import Dialect, Speaking
from serving.limits import Limits
from serving.refusal import ApiError, Headers, invalid
from serving.stream import StreamedAnswer

T = TypeVar("T")
A = TypeVar("A", bound=Asked)

_CHAT = ChatDialect()
_LARGE = 2**18
"""Bytes from which a body is read in a thread, so that others do not wait for it."""
_JSON = (b"content-type", b"application/json")
_EVENTS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Replying(Protocol):
    """An answer while it arrives, in the form of the chat route."""

    is_stream: bool

    async def read(self) -> bytes: ...

    async def piece(self) -> bytes:
        """What came since the last one; empty at the end."""
        ...

    async def finish(self) -> None:
        """Reads what ends the message, so that the connection may serve again."""
        ...


class Passing(ABC, Generic[A]):
    """What passes an answer on. `pass_on` is its one entrance."""

    counts: Counter[str]
    limits: Limits

    @abstractmethod
    def ask(self, asked: A) -> AbstractAsyncContextManager[Replying]:
        """The engine's reply."""

    @abstractmethod
    def record(self, asked: A, answer: Answer | None, failure: BaseException | None) -> None:
        """`failure` None = the answer is whole.

        Raises:
            ApiError: it could not be recorded, so its client must not get it.
        """

    async def settled(self, asked: A) -> None:
        """Returns once the record is as safe as it has to be before the answer's last byte.

        Raises:
            ApiError: it is not.
        """

    @abstractmethod
    def names(self, asked: A) -> Headers:
        """What the answer's headers say of its record."""

    def dialect(self, asked: A) -> Dialect:
        """What its client speaks."""
        return _CHAT

    async def pass_on(self, asked: A, receive: Receive, send: Send, named: Headers) -> None:
        await (self._stream if asked.chat.streamed else self._whole)(asked, receive, send, named)

    async def _whole(self, asked: A, receive: Receive, send: Send, named: Headers) -> None:
        try:
            async with wire.Attended(receive), self.ask(asked) as reply:
                data = await reply.read()
            asked.first_byte = asked.last_byte = time.time_ns()
            answer, data = understand(data)
            body = self.dialect(asked).whole(asked, _rewrite(asked)(data))
        except EngineError as error:
            self.record(asked, None, error)
            raise ApiError(502, str(error), code="engine_error") from error
        except (Exception, asyncio.CancelledError) as error:  # a fault of ours is recorded too
            self.record(asked, None, error)
            raise
        self.record(asked, answer, None)
        await self.settled(asked)
        failpoint("gateway.recorded")
        self.counts["answered"] += 1
        await wire.answer(send, 200, body, [_JSON, *named, *self.names(asked)])

    async def _stream(self, asked: A, receive: Receive, send: Send, named: Headers) -> None:
        speaking = self.dialect(asked).stream(asked)
        client = _Client(send, speaking, lambda: [*named, *self.names(asked)], self.limits.read_s)
        streamed = StreamedAnswer(_rewrite(asked), asked.chat.choices, speaking)
        failure: ApiError | None = None
        try:
            async with wire.Attended(receive):
                await self._events(asked, streamed, client)
        except (EngineError, ApiError) as error:
            failure = _as_api(error)
        except (Exception, asyncio.CancelledError) as error:
            self.record(asked, streamed.answer(), error)
            raise
        if failure is None and not streamed.finished:
            reason = streamed.error or "the engine cut the stream"
            failure = ApiError(502, reason, code="engine_cut")
        try:
            self.record(asked, streamed.answer(), failure)
            await self.settled(asked)
            failpoint("gateway.recorded")
        except ApiError as error:
            failure = error
        await client.finish(streamed, failure)
        self.counts["cut" if failure else "answered"] += 1

    async def _events(self, asked: A, streamed: StreamedAnswer, client: "_Client") -> None:
        async with self.ask(asked) as reply:
            # Who answers is known only now.
            streamed.rewrite = _rewrite(asked)
            if not reply.is_stream:
                raise EngineError("the engine answered a request for a stream with no stream")
            while piece := await reply.piece():
                now = streamed.feed(piece)
                asked.last_byte = time.time_ns()
                asked.first_byte = asked.first_byte or asked.last_byte
                if now:
                    await client.send(now)
                if streamed.done or streamed.error:
                    await reply.finish()
                    return


class _Client:
    """The receiving end of one stream. Whoever takes nothing for `patience_s` has left: it would
    hold its place, and the engine's, for as long as it likes."""

    def __init__(
        self, send: Send, speaking: Speaking, named: Callable[[], Headers], patience_s: float
    ) -> None:
        self._send, self._speaking, self._named = send, speaking, named
        self._patience_s = patience_s
        self._started = False

    async def send(self, data: bytes, *, last: bool = False) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                if not self._started:
                    self._started = True
                    await wire.start(self._send, 200, [*_EVENTS, *self._named()])
                await wire.more(self._send, data, last=last)
        except TimeoutError as error:
            raise wire.HungUp from error

    async def finish(self, streamed: StreamedAnswer, failure: ApiError | None) -> None:
        if failure is None:
            await self.send(b"".join(streamed.held) + self._speaking.end(), last=True)
        elif self._started:
            await self.send(self._speaking.fail(failure), last=True)
        else:
            raise failure


async def apart(body: bytes, work: Callable[[], T]) -> T:
    """`work` on a body, in a thread where it is long."""
    return work() if len(body) < _LARGE else await asyncio.to_thread(work)


def messages_asked(said: list[dict[str, Any]], offload: Offload) -> tuple[Message, ...]:
    """
    Raises:
        ApiError: 400: one of them is no message.
    """
    try:
        return messages_of(said, offload)
    except BadRecord as error:
        raise invalid(f"{error.field}: {error.reason}", error.field) from error


def recorded(asked: Asked, answer: Answer | None, why: str | None, offload: Offload) -> Span:
    """The span, also where the engine's message is none."""
    try:
        return span_of(asked, answer, why, offload)
    except BadRecord as bad:
        return span_of(asked, None, f"the engine's message is none: {bad}", offload)


def why_of(failure: BaseException) -> str:
    if isinstance(failure, wire.HungUp):
        return "the client hung up"
    if isinstance(failure, asyncio.CancelledError):
        return "the gateway was stopped"
    if isinstance(failure, FlywheelError):
        return str(failure)
    return f"the gateway failed: {type(failure).__name__}"


def _rewrite(asked: Asked) -> Rewrite:
    chat = asked.chat
    return Rewrite(
        asked.response_id,
        asked.answers,
        logprobs=chat.wants_logprobs,
        ids=chat.wants_ids,
        usage=chat.wants_usage or not chat.streamed,
    )


def _as_api(error: EngineError | ApiError) -> ApiError:
    return error if isinstance(error, ApiError) else ApiError(502, str(error), code="engine_error")

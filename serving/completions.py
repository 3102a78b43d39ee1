"""POST /v1/chat/completions: from a client's bytes to the engine and back, recorded on the way.

Invariant: what a client saw the end of is in the journal. The record is written after the engine's
last byte and before the client's; what broke off is recorded too, as broken off.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)

from starlette.types import Receive, Scope, Send

from flywheel.errors import BadRecord, EngineError
from flywheel.failpoints import failpoint
from flywheel.ids import new_ulid
from flywheel.records import Message
from serving import wire
from serving.answer import Answer, Rewrite, understand
from serving.capture import Asked, trace_of
from serving.chat import Chat
from serving.choosing import Choice, choose
from serving.conversation import messages_of
from serving.following import Following
from serving.limits import Limits
from serving.recording import NotRecorded, Recording
from serving.refusal import ApiError, Headers, invalid
from serving.routing import served_as
from serving.state import EngineState
from serving.stream import DONE, StreamedAnswer
from serving.upstream import NotLoaded, Reply, Upstream

_LARGE = 2**18
"""Bytes from which a body is read in a thread, so that others do not wait for it."""
_JSON = (b"content-type", b"application/json")
_EVENTS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Completions:
    """An ASGI endpoint."""

    def __init__(
        self,
        limits: Limits,
        following: Following,
        upstream: Upstream,
        recording: Recording,
        engine: EngineState,
    ) -> None:
        self.limits, self.following, self.upstream = limits, following, upstream
        self.recording, self.engine = recording, engine
        self.counts = recording.counts
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = scope["flywheel.headers"]
        request_id: str = scope["flywheel.request_id"]
        named = [(b"x-request-id", request_id.encode())]
        self.counts["requests"] += 1
        asked: Asked | None = None
        try:
            with self._slot():
                body = await wire.read_body(headers, receive, self.limits)
                asked = await self._let_in(body, headers, request_id)
                answer = self._stream if asked.chat.streamed else self._whole
                await answer(asked, receive, send, named)
        except wire.HungUp:
            self.counts["hung_up"] += 1
        except ApiError as error:
            self.counts[f"refused_{error.status}"] += 1
            await wire.refuse(send, error, named + (_names(asked) if asked else []))

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if self.running >= self.limits.concurrent:
            raise ApiError(
                429, f"{self.running} requests are in work: come again", code="busy", retry_after=1
            )
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    async def _let_in(self, body: bytes, headers: dict[bytes, bytes], request_id: str) -> Asked:
        """All that can be refused is refused here, before anything is spent."""
        if len(body) < _LARGE:
            chat = Chat(body, self.limits)
        else:
            chat = await asyncio.to_thread(Chat, body, self.limits)
        deployment = self.following.resolve(chat.request.model)
        header = headers.get(b"x-conversation-id")
        conversation = chat.conversation(None if header is None else _text(header))
        user = chat.user()
        if not self.engine.answers:
            raise self.engine.refusal()
        await self.recording.ready()
        if len(body) < _LARGE:
            messages = self._messages(chat)
        else:
            messages = await asyncio.to_thread(self._messages, chat)
        route = self.following.route(chat.request.model)
        chosen = choose(route, conversation or user) if route else Choice(deployment, 1.0)
        return Asked(
            chat=chat,
            messages=messages,
            deployment=chosen.deployment,
            probability=chosen.probability,
            instead=route.champion if route and chosen.deployment != route.champion else None,
            response_id=f"chatcmpl-{new_ulid().lower()}",
            request_id=request_id,
            conversation=conversation,
            user=user,
            start=time.time_ns(),
            template_digest=self.engine.template_digest,
            tokenizer_digest=self.engine.tokenizer_digest,
        )

    def _messages(self, chat: Chat) -> tuple[Message, ...]:
        try:
            return messages_of(chat.request.messages, self.recording.offload)
        except BadRecord as error:
            raise invalid(f"{error.field}: {error.reason}", error.field) from error
        except NotRecorded as error:
            raise self.recording.refusal() from error

    # --- not streamed

    async def _whole(self, asked: Asked, receive: Receive, send: Send, named: Headers) -> None:
        try:
            async with wire.Attended(receive), self._reply(asked) as reply:
                data = await reply.read()
            answer, data = understand(data)
        except EngineError as error:
            self._record(asked, None, str(error))
            raise ApiError(502, str(error), code="engine_error") from error
        except (ApiError, wire.HungUp, asyncio.CancelledError) as error:
            self._record(asked, None, _why(error))
            raise
        asked.first_byte = time.time_ns()
        body = _rewrite(asked)(data)
        self._record(asked, answer, None)
        failpoint("gateway.recorded")
        self.counts["answered"] += 1
        await wire.answer(send, 200, body, [_JSON, *named, *_names(asked)])

    # --- streamed

    async def _stream(self, asked: Asked, receive: Receive, send: Send, named: Headers) -> None:
        client = _Client(send, named, asked)
        streamed = StreamedAnswer(_rewrite(asked), asked.chat.choices)
        failure: ApiError | None = None
        try:
            async with wire.Attended(receive):
                await self._pass_on(asked, streamed, client)
        except (EngineError, ApiError) as error:
            failure = _as_api(error)
        except (wire.HungUp, asyncio.CancelledError) as error:
            self._record(asked, streamed.answer(), _why(error))
            raise
        if failure is None and not streamed.finished:
            reason = streamed.error or "the engine cut the stream"
            failure = ApiError(502, reason, code="engine_cut")
        try:
            self._record(asked, streamed.answer(), str(failure) if failure else None)
            failpoint("gateway.recorded")
        except ApiError as error:
            failure = error
        await client.finish(streamed, failure)
        self.counts["cut" if failure else "answered"] += 1

    async def _pass_on(self, asked: Asked, streamed: StreamedAnswer, client: "_Client") -> None:
        async with self._reply(asked) as reply:
            if asked.absent is not None:
                streamed.rewrite = _rewrite(asked)
            if not reply.is_stream:
                raise EngineError("the engine answered a request for a stream with no stream")
            while piece := await reply.piece():
                now = streamed.feed(piece)
                asked.first_byte = asked.first_byte or time.time_ns()
                if now:
                    await client.send(now)
                if streamed.done or streamed.error:
                    await reply.finish()
                    return

    # --- both

    @asynccontextmanager
    async def _reply(self, asked: Asked) -> AsyncIterator[Reply]:
        """The engine's; where it has not loaded a challenger, to the champion: trying one out must
        cost nobody an answer."""
        async with AsyncExitStack() as stack:
            try:
                reply = await stack.enter_async_context(self._ask(asked))
            except NotLoaded:
                if asked.instead is None:
                    raise
                self.counts["challenger_absent"] += 1
                asked.fall_back(asked.instead)
                reply = await stack.enter_async_context(self._ask(asked))
            yield reply

    def _ask(self, asked: Asked) -> AbstractAsyncContextManager[Reply]:
        chat, name = asked.chat, served_as(asked.deployment)
        return self.upstream.chat(
            chat.for_engine(name), lambda: chat.for_engine(name, bounded=False)
        )

    def _record(self, asked: Asked, answer: Answer | None, error: str | None) -> None:
        """
        Raises:
            ApiError: it could not be recorded, and the project wants no such answers.
        """
        offload = self.recording.offload
        try:
            try:
                trace = trace_of(asked, answer, error, offload)
            except BadRecord as bad:
                trace = trace_of(asked, None, f"the engine's message is none: {bad}", offload)
            self.recording.keep_or_count(trace)
        except NotRecorded as failed:
            if error is None:
                raise self.recording.refusal() from failed


class _Client:
    """The receiving end of one stream."""

    def __init__(self, send: Send, named: Headers, asked: Asked) -> None:
        self._send, self._named, self._asked, self._started = send, named, asked, False

    async def send(self, data: bytes, *, last: bool = False) -> None:
        if not self._started:
            self._started = True
            named = [*self._named, *_names(self._asked)]
            await wire.start(self._send, 200, [*_EVENTS, *named])
        await wire.more(self._send, data, last=last)

    async def finish(self, streamed: StreamedAnswer, failure: ApiError | None) -> None:
        if failure is None:
            await self.send(b"".join(streamed.held) + DONE, last=True)
        elif self._started:
            await self.send(b"data: " + failure.body() + b"\n\n", last=True)
        else:
            raise failure


def _rewrite(asked: Asked) -> Rewrite:
    chat = asked.chat
    return Rewrite(
        asked.response_id,
        asked.deployment.name,
        logprobs=chat.wants_logprobs,
        ids=chat.wants_ids,
        usage=chat.wants_usage or not chat.streamed,
    )


def _names(asked: Asked) -> Headers:
    return [
        (b"x-flywheel-trace-id", asked.trace_id.encode()),
        (b"x-flywheel-deployment", asked.deployment.name.encode()),
    ]


def _as_api(error: EngineError | ApiError) -> ApiError:
    return error if isinstance(error, ApiError) else ApiError(502, str(error), code="engine_error")


def _why(error: BaseException) -> str:
    if isinstance(error, wire.HungUp):
        return "the client hung up"
    if isinstance(error, asyncio.CancelledError):
        return "the gateway was stopped"
    return str(error)


def _text(header: bytes) -> str:
    try:
        return header.decode("utf-8")
    except UnicodeDecodeError:
        return header.decode("latin-1")

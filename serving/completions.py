"""POST /v1/chat/completions: who is let in, which deployment answers, and where the record goes.

How an answer passes from the engine to its client is `serving.passing`'s. Calls of one
conversation have one trace id; the committer joins their spans.
"""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)

from starlette.types import Receive, Scope, Send

from flywheel.ids import new_ulid
from flywheel.lineage import Deployment
from flywheel.records import Message, Trace, trace_id
from serving import wire
from serving.answer import Answer
from serving.capture import Asked
from serving.chat import Chat
from serving.choosing import Choice, choose
from serving.following import Following
from serving.limits import Limits
from serving.passing import Passing, apart, messages_asked, recorded, why_of
from serving.recording import NotRecorded, Recording
from serving.refusal import ApiError, Headers
from serving.routing import served_as
from serving.state import EngineState
from serving.upstream import NotLoaded, Reply, Upstream

SOURCE = "gateway"


class Routed(Asked, kw_only=True):
    """A client's request, on its way to a deployment."""

    deployment: Deployment
    conversation: str | None
    """The caller's id. None = this call is a conversation of its own."""
    user: str | None
    instead: Deployment | None = None
    """Of a challenger: the champion, who answers where the engine has not loaded it."""

    def fall_back(self, champion: Deployment) -> None:
        """While the challenger is away, all requests go to the champion."""
        self.notes["challenger_absent"] = self.deployment.name
        self.deployment, self.answers = champion, champion.name
        self.probability, self.instead = 1.0, None

    @property
    def external_id(self) -> str:
        return self.conversation or self.response_id

    @property
    def trace_id(self) -> str:
        return trace_id(self.deployment.project, SOURCE, self.external_id)


class Completions(Passing[Routed]):
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
        asked: Routed | None = None
        try:
            with self._slot():
                body = await wire.read_body(headers, receive, self.limits)
                asked = await self._let_in(body, headers, request_id)
                await self.pass_on(asked, receive, send, named)
        except wire.HungUp:
            self.counts["hung_up"] += 1
        except ApiError as error:
            self.counts[f"refused_{error.status}"] += 1
            await wire.refuse(send, error, named + (self.names(asked) if asked else []))

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

    async def _let_in(self, body: bytes, headers: dict[bytes, bytes], request_id: str) -> Routed:
        """All that can be refused is refused here, before anything is spent."""
        chat = await apart(body, lambda: Chat(body, self.limits))
        deployment = self.following.resolve(chat.request.model)
        header = headers.get(b"x-conversation-id")
        conversation = chat.conversation(None if header is None else _text(header))
        user = chat.user()
        if not self.engine.answers:
            raise self.engine.refusal()
        await self.recording.ready()
        messages = await apart(body, lambda: self._messages(chat))
        route = self.following.route(chat.request.model)
        chosen = choose(route, conversation or user) if route else Choice(deployment, 1.0)
        return Routed(
            chat=chat,
            messages=messages,
            answers=chosen.deployment.name,
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
            return messages_asked(chat, self.recording.offload)
        except NotRecorded as error:
            raise self.recording.refusal() from error

    @asynccontextmanager
    async def ask(self, asked: Routed) -> AsyncIterator[Reply]:
        """The engine's; where it has not loaded a challenger, to the champion: trying one out must
        cost nobody an answer."""
        async with AsyncExitStack() as stack:
            try:
                reply = await stack.enter_async_context(self._reply(asked))
            except NotLoaded:
                if asked.instead is None:
                    raise
                self.counts["challenger_absent"] += 1
                asked.fall_back(asked.instead)
                reply = await stack.enter_async_context(self._reply(asked))
            yield reply

    def _reply(self, asked: Routed) -> AbstractAsyncContextManager[Reply]:
        chat, name = asked.chat, served_as(asked.deployment)
        return self.upstream.ask(
            chat.for_engine(name), lambda: chat.for_engine(name, bounded=False)
        )

    def record(self, asked: Routed, answer: Answer | None, failure: BaseException | None) -> None:
        """
        Raises:
            ApiError: it could not be recorded, and the project wants no such answers.
        """
        why = None if failure is None else why_of(failure)
        try:
            span = recorded(asked, answer, why, self.recording.offload)
            self.recording.keep_or_count(
                Trace(
                    id=asked.trace_id,
                    project=asked.deployment.project,
                    source=SOURCE,
                    external_id=asked.external_id,
                    origin="production",
                    spans=(span,),
                    conversation=asked.external_id,
                    user=asked.user,
                )
            )
        except NotRecorded as failed:
            if failure is None:
                raise self.recording.refusal() from failed

    def names(self, asked: Routed) -> Headers:
        return [
            (b"x-flywheel-trace-id", asked.trace_id.encode()),
            (b"x-flywheel-deployment", asked.deployment.name.encode()),
        ]


def _text(header: bytes) -> str:
    try:
        return header.decode("utf-8")
    except UnicodeDecodeError:
        return header.decode("latin-1")

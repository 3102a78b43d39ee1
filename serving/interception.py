"""The point of interception: one server on which the models of many episodes are called.

Enter: tickets of episodes, and the calls that their harnesses make at the address that each gets.
Leave: the model's answers, and in the end each episode's trace. A call takes the gateway's way
(`serving.passing`); only who is let in, what is forced and where the record goes are its own.
Invariant: a call is recorded in the episode whose key it came with, and in no other.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from starlette.types import Message, Receive, Scope, Send

from flywheel.episodes import Access, Forced, Ticket
from flywheel.errors import EngineError, UsageError
from flywheel.ids import digest_bytes
from flywheel.records import Span, Trace
from serving import wire
from serving.answer import Answer
from serving.conversation import Offload, Put
from serving.interception_episodes import Call, Ended, Episode, Spent
from serving.interception_forced import ForcedChat
from serving.interception_server import Address, serve
from serving.limits import Limits
from serving.passing import Passing, Replying, apart, messages_asked, recorded, why_of
from serving.refusal import ApiError, Headers
from serving.upstream import Upstream

LIMITS = Limits(max_tokens=2**31, concurrent=512)
"""`concurrent`: calls at the upstream together; one more waits. The run bounds the answers."""
_log = logging.getLogger("flywheel.interception")


class Served(NamedTuple):
    """Whose answers the episodes get: any server that speaks OpenAI's protocol."""

    url: str
    model: str
    """The name that the server knows it by."""
    key: str | None = None
    deployment: str | None = None
    """The name that records bear; None = `model`."""
    tokens: bool = True
    """False = a server that gives neither token ids nor log-probabilities."""
    template_digest: str | None = None
    """Of the server's chat template; None = it did not say."""
    tokenizer_digest: str | None = None


class Interception(Passing[Call]):
    """Implements `environments.harnesses.contract.Recorder`. `async with` it: it listens within."""

    def __init__(
        self,
        served: Served,
        *,
        limits: Limits = LIMITS,
        put: Put = digest_bytes,
        socket: Path | None = None,
    ) -> None:
        """
        Args:
            put: keeps what is too large for a record, and returns its digest. By default the
                digest alone is kept.
            socket: a Unix socket to listen at as well, for programs without a network.
        """
        self.served, self.limits = served, limits
        self.name = served.deployment or served.model
        self.counts: Counter[str] = Counter()
        self.offload = Offload(put, text=limits.text, inline_image=limits.inline_image)
        self._socket = socket
        self._upstream = Upstream(limits)
        self._upstream.point_to(served.url, served.key)
        self._episodes: dict[str, Episode] = {}
        self._turns = asyncio.Semaphore(limits.concurrent)
        self._life = contextlib.AsyncExitStack()
        self.address: Address | None = None
        """Where it listens; None = it does not."""

    async def __aenter__(self) -> Self:
        await self._upstream.open()
        self._life.push_async_callback(self._upstream.close)
        self.address = await self._life.enter_async_context(serve(self, self._socket))
        return self

    async def __aexit__(self, *error: object) -> None:
        for episode in list(self._episodes.values()):
            await episode.end()
        self._episodes.clear()
        self.address = None
        await self._life.aclose()

    # --- episodes

    async def open(self, ticket: Ticket, forced: Forced) -> Access:
        if self.address is None:
            raise UsageError("the interception does not listen: `async with` it first")
        access = Access(f"{self.address.url}/v1", f"sk-{secrets.token_urlsafe(24)}", self.name)
        self._episodes[access.key] = Episode(ticket, forced, access)
        return access

    async def close(
        self, access: Access, spans: Sequence[Span] = (), error: str | None = None
    ) -> Trace:
        """The episode's trace; calls still under way are cut.

        Raises:
            UsageError: it is not open.
            BadRecord: one of `spans` has the id of a recorded call.
        """
        episode = self._episodes.pop(access.key, None)
        if episode is None:
            raise UsageError("no episode of this key is open: it was closed before")
        await episode.end()
        return episode.trace(spans, error)

    # --- calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = wire.request_id_of(dict(scope["headers"]))
        named: Headers = [(b"x-request-id", request_id.encode())]
        self.counts["requests"] += 1
        try:
            headers = wire.headers_of(scope, self.limits)
            episode = self._episode(headers)
            if scope["path"] == "/v1/chat/completions" and scope["method"] == "POST":
                await self._chat(episode, headers, named, receive, send)
            else:
                await wire.answer_json(send, self._about(scope), named)
        except ApiError as error:
            self.counts[f"refused_{error.status}"] += 1
            await wire.refuse(send, error, named)

    def _episode(self, headers: dict[bytes, bytes]) -> Episode:
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        episode = self._episodes.get(key.strip().decode("latin-1"))
        if scheme.lower() != b"bearer" or episode is None:
            raise ApiError(
                401,
                "no open episode has this key: send `Authorization: Bearer KEY` with the key that "
                "the episode was given; it ends with the episode",
                code="invalid_api_key",
            )
        return episode

    def _about(self, scope: Scope) -> object:
        method, path = scope["method"], scope["path"]
        model = {"id": self.name, "object": "model", "created": 0, "owned_by": "flywheel"}
        if method == "GET" and path == "/v1/models":
            return {"object": "list", "data": [model]}
        if method == "GET" and path == f"/v1/models/{self.name}":
            return model
        raise ApiError(404, f"{method} {path}: there are /v1/chat/completions and /v1/models")

    async def _chat(
        self,
        episode: Episode,
        headers: dict[bytes, bytes],
        named: Headers,
        receive: Receive,
        send: Send,
    ) -> None:
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        call: Call | None = None
        try:
            with episode.running():
                async with self._turns:
                    body = await wire.read_body(headers, receive, self.limits)
                    call = await self._let_in(episode, body, headers, named)
                    await self.pass_on(call, receive, sending, named)
        except wire.HungUp:
            self.counts["hung_up"] += 1
        except ApiError as error:
            if call is None:
                episode.refused[str(error.status)] += 1
            extra: Headers = [(b"x-should-retry", b"false")] if isinstance(error, Spent) else []
            self.counts[f"refused_{error.status}"] += 1
            await wire.refuse(send, error, named + extra + (self.names(call) if call else []))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not episode.over or task is None or task.uncancel():
                raise
            if begun:
                await wire.more(send, b"data: " + Ended().body() + b"\n\n", last=True)
            else:
                await wire.refuse(send, Ended(), named)

    async def _let_in(
        self, episode: Episode, body: bytes, headers: dict[bytes, bytes], named: Headers
    ) -> Call:
        chat = await apart(
            body,
            lambda: ForcedChat(body, self.limits, episode.forced, tokens=self.served.tokens),
        )
        messages = await apart(body, lambda: messages_asked(chat, self.offload))
        number = episode.number()
        chat.number(number)
        overruled = chat.overruled
        return Call(
            chat=chat,
            messages=messages,
            answers=self.name,
            response_id=f"chatcmpl-{episode.trace_id[:20]}-{number}",
            request_id=named[0][1].decode(),
            start=time.time_ns(),
            template_digest=self.served.template_digest,
            tokenizer_digest=self.served.tokenizer_digest,
            probability=None,
            notes={"overruled": overruled} if overruled else {},
            episode=episode,
            number=number,
        )

    @contextlib.asynccontextmanager
    async def ask(self, asked: Call) -> AsyncIterator[Replying]:
        chat, model = asked.chat, self.served.model
        async with self._upstream.chat(
            chat.for_engine(model), lambda: chat.for_engine(model, bounded=False)
        ) as reply:
            yield reply

    def record(self, asked: Call, answer: Answer | None, failure: BaseException | None) -> None:
        why = None if failure is None else why_of(failure)
        if isinstance(failure, asyncio.CancelledError) and asked.episode.over:
            why = "the episode ended while this call was under way"
        if isinstance(failure, ApiError | EngineError):
            asked.notes["status"] = failure.status if isinstance(failure, ApiError) else 502
        asked.episode.keep(asked.number, recorded(asked, answer, why, self.offload))

    def names(self, asked: Call) -> Headers:
        return [
            (b"x-flywheel-trace-id", asked.episode.trace_id.encode()),
            (b"x-flywheel-deployment", asked.answers.encode()),
            (b"x-flywheel-span", asked.span_id.encode()),
        ]

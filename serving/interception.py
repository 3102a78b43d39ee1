"""The point of interception: one server on which the models of many episodes are called.

Enter: tickets of episodes, and the calls that their harnesses make at the address that each gets.
Leave: the model's answers, and in the end each episode's trace. Nothing is written to disk here:
the trace is its receiver's to store.
Invariant: a call is recorded in the episode whose key it came with, and in no other.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from starlette.types import Message, Receive, Scope, Send

from flywheel.episodes import Access, Forced, Ticket
from flywheel.errors import UsageError
from flywheel.ids import digest_bytes
from flywheel.records import Span, Trace
from serving import wire
from serving.conversation import Offload, Put
from serving.interception_calls import Calls
from serving.interception_calls import Served as Served
from serving.interception_episodes import Call, Ended, Episode, Spent
from serving.interception_server import Address, serve
from serving.limits import Limits
from serving.policies import Policies
from serving.refusal import ApiError, Headers

if TYPE_CHECKING:
    from trainer.render import Rendering

_log = logging.getLogger("flywheel.interception")
LIMITS = Limits(max_tokens=2**31, concurrent=512, silence_s=1800.0, total_s=3600.0)
"""`concurrent`: calls at the model's server together; one more waits. The run bounds answers, and
many long ones may stand in the server's queue."""


class Interception:
    """Implements `environments.harnesses.contract.Recorder`. `async with` it: it listens within."""

    def __init__(
        self,
        served: Served,
        *,
        limits: Limits = LIMITS,
        put: Put = digest_bytes,
        rendering: "Callable[[], Rendering] | None" = None,
        socket: Path | None = None,
        policies: Policies | None = None,
    ) -> None:
        """
        Args:
            put: keeps what is too large for a record, and returns its digest. By default the
                digest alone is kept.
            rendering: loads the served model's chat template, when a second turn needs it; by
                default from `served.base`.
            socket: a Unix socket to listen at as well, for programs without a network.
            policies: says at each call which weights answer it; None = always `served.model`.
        """
        offload = Offload(put, text=limits.text, inline_image=limits.inline_image)
        self.limits, self.name = limits, served.name
        self.calls = Calls(served, limits, offload, rendering, policies)
        self.address: Address | None = None
        """Where it listens; None = it does not."""
        self._socket = socket
        self._episodes: dict[str, Episode] = {}
        self._turns = asyncio.Semaphore(limits.concurrent)
        self._life = contextlib.AsyncExitStack()

    @property
    def counts(self) -> Counter[str]:
        """Requests, and how they ended, of all episodes."""
        return self.calls.counts

    async def __aenter__(self) -> Self:
        await self.calls.open()
        self._life.push_async_callback(self.calls.close)
        self.address = await self._life.enter_async_context(serve(self, self._socket))
        return self

    async def __aexit__(self, *error: object) -> None:
        for episode in list(self._episodes.values()):
            await episode.end()
        self._episodes.clear()
        self.address = None
        await self._life.aclose()

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
            BadRecord: one of `spans` has the id of a recorded call; close it with others.
        """
        episode = self._episodes.get(access.key)
        if episode is None:
            raise UsageError("no episode of this key is open: it was closed before")
        await episode.end()
        trace = episode.trace(spans, error)
        self._episodes.pop(access.key, None)
        return trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] != "http":
            return
        named = [(b"x-request-id", wire.request_id_of(dict(scope["headers"])).encode())]
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
        except Exception:
            self.counts["faults"] += 1
            _log.exception("a call of an episode failed in the interception itself")
            await wire.refuse(send, ApiError(500, "a fault in the interception"), named)

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
                # Before its turn: who sends slowly holds up only itself.
                body = await wire.read_body(headers, receive, self.limits)
                async with self._turns:
                    call = await self.calls.let_in(episode, body, headers, named[0][1].decode())
                    await self.calls.pass_on(call, receive, sending, named)
        except wire.HungUp:
            self.counts["hung_up"] += 1
        except ApiError as error:
            if call is None:
                episode.refused[str(error.status)] += 1
            self.counts[f"refused_{error.status}"] += 1
            extra: Headers = [(b"x-should-retry", b"false")] if isinstance(error, Spent) else []
            await wire.refuse(send, error, named + extra + (self.calls.names(call) if call else []))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not episode.over or task is None or task.uncancel():
                raise
            if begun:
                await wire.more(send, b"data: " + Ended().body() + b"\n\n", last=True)
            else:
                await wire.refuse(send, Ended(), named)

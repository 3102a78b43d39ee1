"""Models that somebody else serves: a provider's endpoint, spoken to in its own protocol.

Enters a request in the chat form and a deployment's provider; leaves its reply, in the chat form
again. URLs, keys and time-outs come from the projects' files alone. Invariant: a key is in no error
and in no answer that leaves here.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from msgspec import Raw

from flywheel.errors import EngineError, MissingPart
from flywheel.lineage import Deployment
from flywheel.serving_section import ProviderSection
from serving.capture import Asked
from serving.limits import Limits
from serving.passing import Replying
from serving.provider_keys import key_of
from serving.providers import PROTOCOLS
from serving.providers.contract import Turning
from serving.refusal import ApiError, invalid
from serving.terms import Terms
from serving.upstream import Reply, Upstream

_log = logging.getLogger("flywheel.gateway")


class Provider:
    def __init__(self, name: str, section: ProviderSection, limits: Limits) -> None:
        self.name, self.section = name, section
        self.protocol = PROTOCOLS[section.protocol]
        self.upstream = Upstream(limits, who=f"the provider {name}", silence_s=section.timeout_s)
        self._key: str | None = None
        self._told = False
        """Whether the log has been told that there is none."""

    @asynccontextmanager
    async def ask(self, asked: Asked) -> AsyncIterator[Replying]:
        """
        Raises:
            ApiError: it could not be asked, or refused; 400 also for what its protocol cannot say.
        """
        chat = asked.chat
        if chat.bare:
            raise invalid("a provider's model answers here: it has chats, and no text completions")
        self._point_out()
        body, left_out = self.protocol.ask(chat, self.section.model)
        async with self.upstream.ask(body, route=self.protocol.route) as reply:
            asked.notes["provider"] = {
                "name": self.name,
                "model": self.section.model,
                **({"left_out": list(left_out)} if left_out else {}),
            }
            turning = self.protocol.stream(chat) if chat.streamed else None
            yield TurnedReply(reply, turning, lambda said: self.protocol.whole(chat, said))

    @asynccontextmanager
    async def relay(self, route: str, fields: dict[str, Raw]) -> AsyncIterator[Reply]:
        """What is no chat, as it is.

        Raises:
            ApiError: it could not be asked, or refused.
        """
        if self.section.protocol != "openai":
            raise invalid(f"the provider {self.name} has nothing at {route}", "model")
        self._point_out()
        body = msgspec.json.encode({**fields, "model": self.section.model})
        async with self.upstream.ask(body, route=route) as reply:
            yield reply

    def _point_out(self) -> None:
        """With the key as it stands now, so that a new one needs no restart of ours."""
        try:
            key = key_of(self.name, self.section)
        except MissingPart as error:
            if not self._told:
                _log.error("%s", error)
            self._told = True
            text = f"the provider {self.name} cannot be asked: the server's log says why"
            raise ApiError(502, text, code="engine_error") from error
        if key != self._key or not self.upstream.replicas.urls:
            self._key = key
            headers = {**self.section.headers, **self.protocol.headers(key)}
            self.upstream.point_out(self.section.url, headers, key)


class TurnedReply:
    """Implements `passing.Replying`: what a provider says, in the chat form."""

    def __init__(
        self, reply: Reply, turning: Turning | None, whole: Callable[[bytes], bytes]
    ) -> None:
        self._reply, self._turning, self._whole = reply, turning, whole
        self.is_stream = reply.is_stream

    async def read(self) -> bytes:
        return self._whole(await self._reply.read())

    async def piece(self) -> bytes:
        if self._turning is None:
            return await self._reply.piece()
        while piece := await self._reply.piece():
            if turned := self._turned(piece):
                return turned
        return b""

    async def finish(self) -> None:
        await self._reply.finish()

    def _turned(self, piece: bytes) -> bytes:
        assert self._turning is not None
        try:
            return self._turning.feed(piece)
        except (msgspec.MsgspecError, TypeError, ValueError, KeyError) as error:
            raise EngineError(f"the provider's stream is none of its protocol: {error}") from error


class External:
    """Every project's providers, each with its connections; a reload's new ones take their place
    with the next request."""

    def __init__(self, terms: Terms, limits: Limits) -> None:
        self._terms, self._limits = terms, limits
        self._known: dict[tuple[str, str], Provider] = {}
        self._left: list[Provider] = []
        """Those that a reload replaced: what they answer still goes on."""

    def of(self, deployment: Deployment) -> Provider:
        """
        Raises:
            ApiError: 503: the project's file does not have this provider any more.
        """
        name = deployment.provider or ""
        section = self._terms.of(deployment.project).providers.get(name)
        if section is None:
            text = f"{deployment.name} is served by {name!r}, which [providers] does not name"
            raise ApiError(503, text, code="engine_away")
        at = (deployment.project, name)
        known = self._known.get(at)
        if known is None or known.section != section:
            if known is not None:
                self._left.append(known)
            known = self._known[at] = Provider(name, section, self._limits)
        return known

    async def close(self) -> None:
        for provider in (*self._known.values(), *self._left):
            await provider.upstream.close()

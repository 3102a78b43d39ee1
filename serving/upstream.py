"""A connection of the gateway's to who answers, an engine (one or several that are equal) or a
provider: bytes out, bytes in, and errors with a status.

Whatever goes wrong between here and there becomes an `ApiError` that the client can act on: 503
where trying again helps, 504 where it took too long, 502 where the other side broke its word.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import aiohttp

from flywheel.errors import EngineError
from flywheel.masking import masked
from serving.limits import Limits
from serving.refusal import ApiError
from serving.replicas import Replicas
from serving.upstream_errors import NotLoaded, away, named, no_room, refused

__all__ = ["NotLoaded", "Reply", "Upstream", "away"]

_LAST_BYTES_S = 0.02
_JSON = {"content-type": "application/json"}


class Reply:
    """The engine's answer while it arrives. Leaving `Upstream.ask` hangs up on what is unread."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        bound: int,
        key: str | None = None,
        who: str = "the engine",
    ) -> None:
        """`bound`: the most bytes that it may have."""
        self._response, self._key, self._who = response, key, who
        self._bound = self._left = bound
        self.status = response.status
        self.is_stream = response.content_type == "text/event-stream"

    async def read(self) -> bytes:
        pieces = []
        while piece := await self._more():
            pieces.append(piece)
        return masked(b"".join(pieces), self._key)

    async def piece(self) -> bytes:
        """What came since the last one; empty at the end."""
        return masked(await self._more(), self._key)

    async def _more(self) -> bytes:
        with named(self._who):
            try:
                piece = await self._response.content.readany()
            except aiohttp.ClientError:
                # The next call raises it again.
                piece = _left_over(self._response.content)
                if not piece:
                    raise
        self._left -= len(piece)
        if self._left < 0:
            text = f"{self._who}'s answer is larger than {self._bound} bytes"
            raise ApiError(502, text, code="engine_error")
        return piece

    async def finish(self) -> None:
        """Reads what ends the message, so that the connection may serve again."""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_LAST_BYTES_S):
                await self._response.content.readany()


def _left_over(content: aiohttp.StreamReader) -> bytes:
    """What had come before the connection broke and nobody had read yet: aiohttp keeps it and has
    no way to ask for it."""
    left = b"".join(content._buffer)
    content._buffer.clear()
    return left


class Upstream:
    def __init__(
        self, limits: Limits, *, who: str = "the engine", silence_s: float | None = None
    ) -> None:
        """
        Args:
            who: as errors name it.
            silence_s: until its first byte, and between two; None = what the limits say.
        """
        self.who, self._headers = who, dict(_JSON)
        self.replicas = Replicas()
        self._bound = limits.answer
        self._key: str | None = None
        self._timeout = aiohttp.ClientTimeout(
            total=limits.total_s,
            sock_connect=limits.connect_s,
            sock_read=silence_s or limits.silence_s,
        )
        self._session: aiohttp.ClientSession | None = None

    def point_to(self, url: str | Sequence[str], key: str | None = None) -> None:
        """Says where the engine is, or its replicas; must be called before the first request."""
        urls = (url,) if isinstance(url, str) else url
        self.replicas.become([one.rstrip("/").removesuffix("/v1") for one in urls])
        self._headers = {**_JSON, **({"authorization": f"Bearer {key}"} if key else {})}
        self._key = key

    def point_out(self, url: str, headers: Mapping[str, str], key: str | None) -> None:
        """The same for one that is not ours, and whose URL has its version in it.

        Args:
            headers: the key's own too.
            key: is masked in what comes back.
        """
        self.replicas.become([url.rstrip("/")])
        self._headers, self._key = {**_JSON, **headers}, key

    async def open(self) -> None:
        """Must run in the loop that the requests run in."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
            timeout=self._timeout,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            read_bufsize=2**20,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @contextlib.asynccontextmanager
    async def ask(
        self,
        body: bytes,
        boundless: Callable[[], bytes] | None = None,
        *,
        route: str = "/v1/chat/completions",
        prefix: bytes = b"",
    ) -> AsyncIterator[Reply]:
        """
        Args:
            boundless: the same request without a bound on the answer's length. vLLM refuses a
                bound that the context has no room for after the prompt; without one it answers as
                long as there is room, which is less than the bound then.
            prefix: what requests have in common that begin alike: of several replicas they get the
                same one.

        Raises:
            ApiError: the engine is away, refused the request, or fell silent.
        """
        url, response = await self._reached(route, body, prefix)
        try:
            if response.status != 200:
                said = await self._said(response)
                if boundless is None or not no_room(response.status, said):
                    raise refused(self.who, response, said)
                response.close()
                response = await self._post(url + route, boundless())
                if response.status != 200:
                    raise refused(self.who, response, await self._said(response))
            yield Reply(response, self._bound, self._key, self.who)
        finally:
            response.close()
            self.replicas.give_back(url)

    async def _reached(
        self, route: str, body: bytes, prefix: bytes
    ) -> tuple[str, aiohttp.ClientResponse]:
        """The first replica that can be reached and has the model, or what the last one said."""
        tried: set[str] = set()
        while True:
            url = self._take(prefix, tried)
            tried.add(url)
            others = len(tried) < len(self.replicas.urls)
            try:
                response = await self._post(url + route, body)
            except ApiError as error:
                self.replicas.give_back(url)
                if error.code in ("engine_away", "engine_cut"):
                    self.replicas.lost(url)
                    if others:
                        continue
                raise
            except BaseException:
                self.replicas.give_back(url)
                raise
            if response.status == 404 and others:
                # It was started again and has not loaded this model yet.
                response.close()
                self.replicas.give_back(url)
                continue
            self.replicas.reached(url)
            return url, response

    def _take(self, prefix: bytes, tried: set[str]) -> str:
        try:
            return self.replicas.take(prefix, tried)
        except EngineError as error:
            raise away(f"{self.who} cannot be reached; it may be starting") from error

    async def _said(self, response: aiohttp.ClientResponse) -> bytes:
        with named(self.who):
            return masked(await response.content.read(64 * 2**10), self._key)

    async def _post(self, url: str, body: bytes) -> aiohttp.ClientResponse:
        with named(self.who):
            try:
                return await self._posted(url, body)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError):
                # A kept connection that the engine had just closed; nothing was answered on it.
                return await self._posted(url, body)

    async def _posted(self, url: str, body: bytes) -> aiohttp.ClientResponse:
        """Where the engine sends us on to is not where the prompt was to go."""
        if self._session is None:
            await self.open()
        assert self._session is not None
        return await self._session.post(
            url, data=body, headers=self._headers, allow_redirects=False
        )

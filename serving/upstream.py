"""The gateway's connection to the engine: bytes out, bytes in, and errors with a status.

Whatever goes wrong between here and the engine becomes an `ApiError` that the client can act on:
503 where trying again helps, 504 where it took too long, 502 where the engine broke its word.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import msgspec

from flywheel.masking import masked
from serving.limits import Limits
from serving.refusal import ApiError

_LAST_BYTES_S = 0.02
_JSON = {"content-type": "application/json"}
_BOUNDS = ("max_tokens", "max_completion_tokens")


class Reply:
    """The engine's answer while it arrives. Leaving `Upstream.ask` hangs up on what is unread."""

    def __init__(
        self, response: aiohttp.ClientResponse, bound: int, key: str | None = None
    ) -> None:
        """`bound`: the most bytes that it may have."""
        self._response, self._key = response, key
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
        with _named():
            piece = await self._response.content.readany()
        self._left -= len(piece)
        if self._left < 0:
            text = f"the engine's answer is larger than {self._bound} bytes"
            raise ApiError(502, text, code="engine_error")
        return piece

    async def finish(self) -> None:
        """Reads what ends the message, so that the connection may serve again."""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_LAST_BYTES_S):
                await self._response.content.readany()


class Upstream:
    def __init__(self, limits: Limits) -> None:
        self._url, self._headers = "", _JSON
        self._bound = limits.answer
        self._key: str | None = None
        self._timeout = aiohttp.ClientTimeout(
            total=limits.total_s, sock_connect=limits.connect_s, sock_read=limits.silence_s
        )
        self._session: aiohttp.ClientSession | None = None

    def point_to(self, url: str, key: str | None = None) -> None:
        """Says where the engine is; must be called before the first request."""
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {**_JSON, **({"authorization": f"Bearer {key}"} if key else {})}
        self._key = key

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
    ) -> AsyncIterator[Reply]:
        """
        Args:
            boundless: the same request without a bound on the answer's length. vLLM refuses a
                bound that the context has no room for after the prompt; without one it answers as
                long as there is room, which is less than the bound then.

        Raises:
            ApiError: the engine is away, refused the request, or fell silent.
        """
        response = await self._post(route, body)
        try:
            if response.status != 200:
                said = await self._said(response)
                if boundless is None or not _no_room(response.status, said):
                    raise _refusal(response.status, said)
                response.close()
                response = await self._post(route, boundless())
                if response.status != 200:
                    raise _refusal(response.status, await self._said(response))
            yield Reply(response, self._bound, self._key)
        finally:
            response.close()

    async def _said(self, response: aiohttp.ClientResponse) -> bytes:
        return masked(await _read_some(response), self._key)

    async def _post(self, route: str, body: bytes) -> aiohttp.ClientResponse:
        with _named():
            try:
                return await self._posted(route, body)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError):
                # A kept connection that the engine had just closed; nothing was answered on it.
                return await self._posted(route, body)

    async def _posted(self, route: str, body: bytes) -> aiohttp.ClientResponse:
        """Where the engine sends us on to is not where the prompt was to go."""
        assert self._session is not None, "open() first"
        return await self._session.post(
            self._url + route, data=body, headers=self._headers, allow_redirects=False
        )


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ApiError(504, "the engine took too long", code="engine_timeout") from error
    except aiohttp.ClientConnectorError as error:
        raise away("the engine cannot be reached; it may be starting") from error
    except aiohttp.ClientError as error:
        text = f"the engine cut the connection: {type(error).__name__}"
        raise ApiError(502, text, code="engine_cut", retry_after=1) from error


class NotLoaded(ApiError):
    """The engine runs without this one model; another that it has could answer."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, code="engine_away", retry_after=2)


def away(message: str) -> ApiError:
    return ApiError(503, message, code="engine_away", retry_after=2)


async def _read_some(response: aiohttp.ClientResponse) -> bytes:
    with _named():
        return await response.content.read(64 * 2**10)


def _no_room(status: int, body: bytes) -> bool:
    """Whether the engine refused the bound on the answer's length."""
    return status == 400 and _words(body)[1] in _BOUNDS


def _refusal(status: int, body: bytes) -> ApiError:
    """The engine's error as ours: 4xx about the request pass, the rest is the engine's fault."""
    message, param, code = _words(body)
    if status == 401:
        return ApiError(502, f"the engine wants another key: {message}", code="engine_error")
    if status == 404:
        # The gateway routed it, so the adapter is not there yet: after a restart, for a moment.
        return NotLoaded(f"the engine has not loaded this model: {message}")
    if status in (400, 413, 422):
        return ApiError(400, message, param=param, code=code)
    if status in (429, 503):
        return ApiError(status, message, code=code or "engine_busy", retry_after=2)
    return ApiError(502, f"the engine failed with status {status}: {message}", code="engine_error")


def _words(body: bytes) -> tuple[str, str | None, str | None]:
    try:
        content: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:500].decode("utf-8", "replace"), None, None
    error = content.get("error", content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return str(error)[:500], None, None
    message = error.get("message") or error.get("detail") or error
    param, code = error.get("param"), error.get("code")
    return (
        str(message)[:2000],
        param if isinstance(param, str) else None,
        code if isinstance(code, str) else None,
    )

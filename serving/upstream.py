"""A connection of the gateway's to who answers, an engine (one or several that are equal) or a
provider: bytes out, bytes in, and errors with a status.

Whatever goes wrong between here and there becomes an `ApiError` that the client can act on: 503
where trying again helps, 504 where it took too long, 502 where the other side broke its word.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from flywheel.errors import EngineError
from flywheel.masking import Masking, masked
from serving.arriving import Arriving, Broken
from serving.limits import Limits
from serving.plain_http import PlainHttp
from serving.refusal import ApiError
from serving.replicas import Replicas
from serving.secure_http import SecureHttp
from serving.upstream_errors import NotLoaded, away, named, no_room, refused

__all__ = ["NotLoaded", "Reply", "Upstream", "away"]

_LAST_BYTES_S = 0.02
_MOST_SAID = 64 * 2**10
"""Bytes of what it says instead of an answer."""
_JSON = {"content-type": "application/json"}


class Reply:
    """The engine's answer while it arrives. Leaving `Upstream.ask` hangs up on what is unread."""

    def __init__(
        self,
        response: Arriving,
        bound: int,
        key: str | None = None,
        who: str = "the engine",
    ) -> None:
        """`bound`: the most bytes that it may have."""
        self._response, self._who, self._masking = response, who, Masking(key)
        self._bound = self._left = bound
        self.status = response.status
        kind = response.headers.get("content-type", "")
        self.is_stream = kind.partition(";")[0].strip().lower() == "text/event-stream"

    async def read(self) -> bytes:
        pieces = []
        while piece := await self.piece():
            pieces.append(piece)
        return b"".join(pieces)

    async def piece(self) -> bytes:
        """What came since the last one; empty at the end."""
        while piece := await self._more():
            if told := self._masking.feed(piece):
                return told
        return self._masking.rest()

    async def _more(self) -> bytes:
        with named(self._who):
            piece = await self._response.some()
        self._left -= len(piece)
        if self._left < 0:
            text = f"{self._who}'s answer is larger than {self._bound} bytes"
            raise ApiError(502, text, code="engine_error")
        return piece

    async def finish(self) -> None:
        """Reads what ends the message, so that the connection may serve again."""
        if self._response.ended:
            return
        with contextlib.suppress(TimeoutError, Broken):
            async with asyncio.timeout(_LAST_BYTES_S):
                await self._response.some()


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
        bounds = {
            "connect_s": limits.connect_s,
            "silence_s": silence_s or limits.silence_s,
            "total_s": limits.total_s,
        }
        self._plain, self._secure = PlainHttp(**bounds), SecureHttp(**bounds)

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

    async def close(self) -> None:
        await self._plain.close()
        await self._secure.close()

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

    async def _reached(self, route: str, body: bytes, prefix: bytes) -> tuple[str, Arriving]:
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

    async def _said(self, response: Arriving) -> bytes:
        said = b""
        with named(self.who):
            while len(said) < _MOST_SAID and (piece := await response.some()):
                said += piece
        return masked(said, self._key)[:_MOST_SAID]

    async def _post(self, url: str, body: bytes) -> Arriving:
        carrying = self._secure if url[:6].lower() == "https:" else self._plain
        with named(self.who):
            return await carrying.post(url, self._headers, body)

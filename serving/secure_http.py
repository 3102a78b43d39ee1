"""HTTPS to who answers elsewhere, over aiohttp: TLS, names, and all that providers' servers do."""

from collections.abc import Mapping

import aiohttp

from serving.arriving import Broken, Unreachable


class SecureHttp:
    """Implements `arriving.Carrying`. Its connections are of the loop that it is first used in."""

    def __init__(self, *, connect_s: float, silence_s: float, total_s: float) -> None:
        self._timeout = aiohttp.ClientTimeout(
            total=total_s, sock_connect=connect_s, sock_read=silence_s
        )
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> "_Answer":
        """
        Raises:
            Unreachable, Broken, TimeoutError
        """
        try:
            return _Answer(await self._posted(url, headers, body))
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError):
            # A kept connection that the other side had just closed; nothing was answered on it.
            pass
        except aiohttp.ClientError as error:
            raise _as_ours(error) from error
        try:
            return _Answer(await self._posted(url, headers, body))
        except aiohttp.ClientError as error:
            raise _as_ours(error) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _posted(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> aiohttp.ClientResponse:
        """Where the other side sends us on to is not where the prompt was to go."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
                timeout=self._timeout,
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                read_bufsize=2**20,
            )
        return await self._session.post(url, data=body, headers=headers, allow_redirects=False)


class _Answer:
    """Implements `arriving.Arriving`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status, self.headers = response.status, response.headers

    @property
    def ended(self) -> bool:
        return self._response.content.at_eof()

    async def some(self) -> bytes:
        try:
            return await self._response.content.readany()
        except aiohttp.ClientError as error:
            # The next call raises it again.
            left = _left_over(self._response.content)
            if not left:
                raise _as_ours(error) from error
            return left

    def close(self) -> None:
        self._response.close()


def _as_ours(error: aiohttp.ClientError) -> Exception:
    if isinstance(error, TimeoutError):
        return TimeoutError()
    if isinstance(error, aiohttp.ClientConnectorError):
        return Unreachable(str(error))
    return Broken(type(error).__name__, begun=True)


def _left_over(content: aiohttp.StreamReader) -> bytes:
    """What had come before the connection broke and nobody had read yet: aiohttp keeps it and has
    no way to ask for it."""
    left = b"".join(content._buffer)
    content._buffer.clear()
    return left

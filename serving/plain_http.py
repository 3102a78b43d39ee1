"""HTTP/1.1 in the clear, to an engine that is near: no general client's layers between it and us.

Enters a URL, headers and a body; leaves the answer while it arrives. Each connection carries one
request at a time and is kept for the next one. Invariant: a connection is used again only where its
last answer was read to its end and it has said nothing since.
"""

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from serving.arriving import Broken, Unreachable
from serving.plain_connection import Answer, Connection

_KEPT_S = 15.0
"""How long a connection waits for its next request."""


class PlainHttp:
    """Implements `arriving.Carrying`. Its connections are of the loop that it is used in."""

    def __init__(self, *, connect_s: float, silence_s: float, total_s: float) -> None:
        """`silence_s`: until the first byte, and between two. `total_s`: the whole of an answer."""
        self.connect_s, self.silence_s, self.total_s = connect_s, silence_s, total_s
        self.open: set[Connection] = set()
        self._free: dict[tuple[str, int], list[Connection]] = {}

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """
        Raises:
            Unreachable, Broken, TimeoutError
        """
        origin, host, path = _read(url)
        said = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\n{said}content-length: {len(body)}\r\n\r\n"
        data = head.encode() + body
        kept = self._take(origin)
        if kept is not None:
            try:
                return await kept.ask(data)
            except Broken as error:
                # It had just been closed: nothing was answered on it.
                if error.begun:
                    raise
        return await (await self._connect(origin)).ask(data)

    async def close(self) -> None:
        for connection in list(self.open):
            connection.abort()

    def give_back(self, connection: Connection) -> None:
        free = self._free.setdefault(connection.origin, [])
        connection.since = connection.loop.time()
        free.append(connection)
        while connection.since - free[0].since > _KEPT_S:
            free.pop(0).abort()

    def _take(self, origin: tuple[str, int]) -> Connection | None:
        free = self._free.get(origin)
        while free:
            connection = free.pop()
            if not connection.closing and connection.loop.time() - connection.since < _KEPT_S:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: tuple[str, int]) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_s):
                return (await loop.create_connection(lambda: Connection(self, origin), *origin))[1]
        except TimeoutError:
            raise
        except OSError as error:
            raise Unreachable(str(error)) from error


@lru_cache(maxsize=256)
def _read(url: str) -> tuple[tuple[str, int], str, str]:
    """Whom to connect to, the Host header, and the path."""
    at = urlsplit(url)
    path = (at.path or "/") + (f"?{at.query}" if at.query else "")
    return (at.hostname or "", at.port or 80), at.netloc.rpartition("@")[2], path

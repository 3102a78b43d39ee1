"""HTTP/1.1 in the clear, to an engine that is near: no general client's layers between it and us.

Enters a URL, headers and a body; leaves the answer while it arrives. Each connection carries one
request at a time and is kept for the next one. Invariant: a connection is used again only where its
last answer was read to its end and it has said nothing since.
"""

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

import httptools

from serving.arriving import Broken, Unreachable

_KEPT_S = 15.0
"""How long a connection waits for its next request."""
_HEAD, _BUFFER = 2**16, 2**20
"""Bytes of an answer's headers; of a body that nobody has read yet."""


class PlainHttp:
    """Implements `arriving.Carrying`. Its connections are of the loop that it is used in."""

    def __init__(self, *, connect_s: float, silence_s: float, total_s: float) -> None:
        """`silence_s`: until the first byte, and between two. `total_s`: the whole of an answer."""
        self.connect_s, self.silence_s, self.total_s = connect_s, silence_s, total_s
        self.open: set[_Connection] = set()
        self._free: dict[tuple[str, int], list[_Connection]] = {}

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> "Answer":
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

    def give_back(self, connection: "_Connection") -> None:
        free = self._free.setdefault(connection.origin, [])
        connection.since = connection.loop.time()
        free.append(connection)
        while connection.since - free[0].since > _KEPT_S:
            free.pop(0).abort()

    def _take(self, origin: tuple[str, int]) -> "_Connection | None":
        free = self._free.get(origin)
        while free:
            connection = free.pop()
            if not connection.closing and connection.loop.time() - connection.since < _KEPT_S:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: tuple[str, int]) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_s):
                return (await loop.create_connection(lambda: _Connection(self, origin), *origin))[1]
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


class Answer:
    """Implements `arriving.Arriving`."""

    def __init__(self, connection: "_Connection") -> None:
        self.status, self.ended, self.size = 0, False, 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.failure: Exception | None = None
        self._connection: _Connection | None = connection
        self._waiter: asyncio.Future[None] | None = None

    async def headed(self) -> None:
        """Returns when its status and headers are there."""
        while not self.status:
            await self._more()

    async def some(self) -> bytes:
        while not self.pieces:
            if self.ended:
                return b""
            await self._more()
        data = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces, self.size = [], 0
        if self._connection is not None:
            self._connection.resume()
        return data

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.left(self)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _more(self) -> None:
        if self.failure is not None:
            raise self.failure
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter


class _Connection(asyncio.Protocol):
    since = 0.0
    """Since when it is free."""

    def __init__(self, pool: PlainHttp, origin: tuple[str, int]) -> None:
        self.loop, self.origin, self._pool = asyncio.get_running_loop(), origin, pool
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked = self._heard = 0.0
        self._head, self._paused, self._kept = 0, False, False

    @property
    def closing(self) -> bool:
        return self._transport.is_closing()

    async def ask(self, data: bytes) -> Answer:
        answer = self._answer = Answer(self)
        self._asked = self._heard = self.loop.time()
        self._head, self._kept = 0, False
        if self._timer is None:
            self._timer = self.loop.call_later(self._due() - self._asked, self._look)
        self._transport.write(data)
        try:
            await answer.headed()
        except BaseException:
            answer.close()
            raise
        return answer

    def left(self, answer: Answer) -> None:
        self._answer = None
        if answer.ended and self._kept and not (self._paused or self.closing):
            self._pool.give_back(self)
        else:
            self.abort()

    def abort(self) -> None:
        self._transport.abort()

    def resume(self) -> None:
        if self._paused:
            self._paused, self._heard = False, self.loop.time()
            self._transport.resume_reading()

    # --- time: one timer for all of a connection's requests, set again only where it has run out

    def _due(self) -> float:
        total = self._asked + self._pool.total_s
        return total if self._paused else min(total, self._heard + self._pool.silence_s)

    def _look(self) -> None:
        self._timer = None
        if self._answer is None or self._answer.ended:
            return
        left = self._due() - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._look)
        else:
            self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.ended:
            self._answer.failure = self._answer.failure or error
            self._answer.wake()
        self.abort()

    # --- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._pool.open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        answer = self._answer
        if answer is not None and answer.status and error is None and _to_the_end(answer):
            answer.ended = True
            answer.wake()
        self._fail(Broken("it closed the connection", begun=bool(self._head)))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.ended:
            self.abort()  # nobody had asked
            return
        self._heard = self.loop.time()
        self._head += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(Broken(f"it speaks no HTTP: {error}", begun=True))
        if not self._answer.status and self._head > _HEAD:
            self._fail(Broken("its headers do not end", begun=True))

    # --- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None and not self._answer.status:
            self._answer.headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        assert self._answer is not None
        if self._answer.ended:
            raise Broken("it said more than was asked", begun=True)
        if status < 200:  # it says that it goes on
            self._answer.headers.clear()
            return
        self._answer.status = status
        self._answer.wake()

    def on_body(self, body: bytes) -> None:
        assert self._answer is not None
        self._answer.pieces.append(body)
        self._answer.size += len(body)
        if self._answer.size > _BUFFER and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._answer.wake()

    def on_message_complete(self) -> None:
        assert self._answer is not None
        if self._answer.status:
            self._answer.ended, self._kept = True, self._parser.should_keep_alive()
            self._answer.wake()


def _to_the_end(answer: Answer) -> bool:
    """Whether the connection's end is the answer's."""
    return "content-length" not in answer.headers and "transfer-encoding" not in answer.headers

"""One connection of `plain_http`: bytes out, an answer in while it arrives.

Invariant: what came before a cut, a silence or nonsense is given before that is told.
"""

import asyncio
from typing import TYPE_CHECKING, cast

import httptools

from serving.arriving import Broken

if TYPE_CHECKING:
    from serving.plain_http import PlainHttp

_HEAD, _BUFFER = 2**16, 2**20
"""Bytes of an answer's headers; of a body that nobody has read yet."""


class Answer:
    """Implements `arriving.Arriving`."""

    def __init__(self, connection: "Connection") -> None:
        self.status, self.ended, self.size = 0, False, 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.failure: Exception | None = None
        self._connection: Connection | None = connection
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


class Connection(asyncio.Protocol):
    since = 0.0
    """Since when it is free."""

    def __init__(self, pool: "PlainHttp", origin: tuple[str, int]) -> None:
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

"""A reply whose first bytes have come: only now is it certain that this deployment answers.

Enters a reply; leaves one that gives the same bytes. A whole answer is read to its end here, a
stream to its first event: what fails until then, another deployment can answer instead.
"""

import msgspec

from serving.passing import Replying
from serving.refusal import ApiError
from serving.stream import data_of

_MOST = 2**16
"""Bytes of comments that keep the line alive before a first event."""


async def begun(reply: Replying, *, streamed: bool) -> Replying:
    """
    Raises:
        ApiError: it broke off, or what came first is an error.
    """
    if not streamed:
        return Begun(reply, await reply.read())
    if not reply.is_stream:
        return reply
    first = b""
    while b"data:" not in first and len(first) < _MOST:
        piece = await reply.piece()
        if not piece:
            raise ApiError(502, "the stream ended before it began", code="engine_cut")
        first += piece
    if why := _error_in(first):
        raise ApiError(502, why, code="engine_error")
    return Begun(reply, first)


class Begun:
    """Implements `passing.Replying`."""

    def __init__(self, reply: Replying, first: bytes) -> None:
        self._reply, self._first = reply, first
        self.is_stream = reply.is_stream

    async def read(self) -> bytes:
        return self._first

    async def piece(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        return await self._reply.piece()

    async def finish(self) -> None:
        await self._reply.finish()


def _error_in(first: bytes) -> str | None:
    """What the first event says that went wrong; None = it is part of an answer."""
    if b'"error"' not in first:
        return None
    payload = data_of(first.replace(b"\r\n", b"\n").split(b"\n\n")[0])
    try:
        said = msgspec.json.decode(payload or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    error = said.get("error") if isinstance(said, dict) else None
    if not error:
        return None
    return str(error.get("message", error) if isinstance(error, dict) else error)[:2000]

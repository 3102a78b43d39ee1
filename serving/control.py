"""What the server and its gateway processes say to each other: JSON lines over a pair of sockets.

The server keeps the engine and what is counted of all; the gateway processes answer requests.
Invariant: when the server's end closes, the gateway process behind the other one leaves.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import msgspec
from msgspec import field

from flywheel.errors import EngineError
from flywheel.records import Record
from serving.observing import Seen
from serving.state import EngineState

_MOST = 2**24
"""Bytes of a line."""


class Engine(Record, frozen=True, kw_only=True, tag="engine"):
    """To a gateway process: the engine as it is now."""

    state: EngineState
    urls: tuple[str, ...] = ()
    """Of each that serves now."""
    key: str | None = None


class Reload(Record, frozen=True, kw_only=True, tag="reload"):
    """To a gateway process: the projects' files have changed, and are sound."""


class Said(Record, frozen=True, kw_only=True, tag="said"):
    """To a gateway process: what it asked for."""

    number: int
    content: Any


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """From a gateway process: it takes requests."""


class Ping(Record, frozen=True, kw_only=True, tag="ping"):
    """To a gateway process: has all before this been obeyed? Its answer is the same message."""


class Asks(Record, frozen=True, kw_only=True, tag="asks"):
    """From a gateway process: "metrics" or "health", of all of them."""

    number: int
    what: str


class Heard(Record, frozen=True, kw_only=True, tag="heard"):
    """From a gateway process, some times a second: what ended, and how it stands."""

    seen: tuple[Seen, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    running: int = 0
    waiting: int = 0
    lag_s: float = 0.0
    problem: str | None = None


Message: TypeAlias = Engine | Reload | Said | Ping | Ready | Asks | Heard

_decoder = msgspec.json.Decoder(Message)


class Channel:
    """One end. `send` never waits: who does not read is cut off once too much lies there."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, end: socket.socket) -> "Channel":
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_MOST))

    def send(self, message: Message) -> None:
        if self._writer.transport.get_write_buffer_size() > _MOST:
            self._writer.transport.abort()
            return
        self._writer.write(msgspec.json.encode(message) + b"\n")

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Until the other end has closed.

        Raises:
            EngineError: the other end says what no end of ours does.
        """
        while line := await self._reader.readline():
            try:
                yield _decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise EngineError(f"a gateway process said nonsense: {error}") from error

    def close(self) -> None:
        self._writer.close()

"""The gateway's connections, held to bounds: who sends slowly, endlessly or too much goes first.

uvicorn's protocol bounds neither the time nor the size of a request's head, nor how many
connections wait. Here a head comes within `head_s` and `head` bytes, all bodies together within
`bodies`, and of more than `connections` that one is closed which has kept us waiting longest.
Invariant: a connection whose request is whole is never closed for another one.
"""

import resource
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flywheel.records import Record

_SWEEP_S = 1.0
_LEAST, _MOST = 64, 8192
_SMALL = 2**16


class Bounds(Record, frozen=True, kw_only=True):
    head_s: float = 15.0
    """Until a request's headers are whole, from its first byte or from the connection's begin."""
    head: int = 64 * 2**10
    """Bytes of request line and headers; one read more may come before it is noticed."""
    bodies: int = 512 * 2**20
    """Bytes of all bodies of requests that are not answered yet; small ones pass beyond it."""
    connections: int | None = None
    """None = half of what the process may open."""


def guarded(bounds: Bounds | None = None) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with these bounds: what `uvicorn.Config(http=…)` takes."""
    guard = _Guard(bounds or Bounds())

    class Guarded(_Guarded):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.guard = guard

    return Guarded


class _Guard:
    """What the connections of one server have together."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.most = bounds.connections or _half_of_all()
        self.held = 0
        """Bytes of bodies."""
        self.open: dict[_Guarded, None] = {}
        self._sweeping = False

    def add(self, one: "_Guarded") -> None:
        self.open[one] = None
        if len(self.open) > self.most:
            waiting = [other for other in self.open if other.since is not None and other is not one]
            if waiting:
                min(waiting, key=lambda other: other.since or 0.0).drop()
        if not self._sweeping:
            self._sweeping = True
            one.loop.call_later(_SWEEP_S, self._sweep, one.loop)

    def _sweep(self, loop: Any) -> None:
        late = time.monotonic() - self.bounds.head_s
        for one in [one for one in self.open if one.in_head and (one.since or late) < late]:
            one.refuse(408, "the headers did not come in time")
        self._sweeping = bool(self.open)
        if self._sweeping:
            loop.call_later(_SWEEP_S, self._sweep, loop)

    def received(self, size: int) -> None:
        self.held += size
        if self.held > self.bounds.bodies:
            coming = [one for one in self.open if one.since is not None]
            largest = max(coming, key=lambda one: one.body, default=None)
            if largest is not None and largest.body > _SMALL:
                largest.refuse(503, "more comes than can be held: come again")


class _Guarded(HttpToolsProtocol):
    guard: _Guard
    since: float | None = None
    """Since when we wait for the client; None = it waits for us."""
    in_head = True
    """Of what comes next, or has begun: headers. Between two requests uvicorn's own timer runs."""
    head = 0
    """Bytes of it."""
    body = 0
    """Bytes of bodies that are not answered yet."""
    _began = False
    _idle = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since = time.monotonic()
        self.guard.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.open.pop(self, None)
        self._forget_body()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._began = False
        super().data_received(data)
        if self._idle:  # blanks before a request: uvicorn's own timer has stopped
            self.in_head = True
        if self.in_head and not self._began:
            self.head += len(data)
            if self.head > self.guard.bounds.head:
                self.refuse(431, "the headers are too large")

    def on_message_begin(self) -> None:
        self.since, self.in_head, self.head, self._began = time.monotonic(), True, 0, True
        self._idle = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.body += len(body)
        self.guard.received(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._forget_body()
        if not self.pipeline:
            self.since, self._idle = time.monotonic(), True
        super().on_response_complete()

    def refuse(self, status: int, why: str) -> None:
        """Says why where nothing was answered yet, and closes."""
        if not self.transport.is_closing():
            again = "retry-after: 1\r\n" if status == 503 else ""
            self.transport.write(
                f"HTTP/1.1 {status} Refused\r\ncontent-type: text/plain; charset=utf-8\r\n{again}"
                f"content-length: {len(why)}\r\nconnection: close\r\n\r\n{why}".encode()
            )
        self._forget_body()
        self.transport.close()

    def drop(self) -> None:
        self.transport.abort()

    def _forget_body(self) -> None:
        self.guard.held -= self.body
        self.body = 0


def _half_of_all() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_LEAST, min(soft // 2 if soft > 0 else _MOST, _MOST))

"""One request to an engine, bounded in time and in size as a whole.

Enter: a client, a request, how long it may take from the first byte to the last. Leaves: the whole
answer. httpx bounds each single read only, so a server that sends a byte now and then would be
waited for without end. Invariant: after the deadline, or `cut`, no thread waits for the socket.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx

LARGEST = 256 * 2**20
"""Bytes of an answer; the largest that is asked for, logprobs of a batch, have a tenth of it."""


class Bounded:
    """Each request has a connection of its own, which can be cut while it is waited for."""

    def __init__(self, url: str, *, timeout_s: float, headers: dict[str, str]) -> None:
        self._http = httpx.Client(
            base_url=url,
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            headers=headers,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self._timeout_s = timeout_s
        self._lines: set[_Line] = set()
        self.ended = threading.Event()
        """Set once by `cut`: nothing is sent any more."""

    def request(
        self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None
    ) -> httpx.Response:
        """
        Raises:
            httpx.HTTPError: no answer, none in time, one that is too large, or `cut`.
        """
        whole_s = self._timeout_s if timeout_s is None else timeout_s
        with self._line(whole_s) as line:
            with self._http.stream(
                method,
                path,
                json=body,
                timeout=httpx.Timeout(whole_s, connect=min(5.0, whole_s)),
                extensions={"trace": line.trace},
            ) as answer:
                content = bytearray()
                for piece in answer.iter_bytes():
                    content += piece
                    if len(content) > LARGEST:
                        raise httpx.ReadError(f"its answer is larger than {LARGEST >> 20} MiB")
            return httpx.Response(
                answer.status_code,
                headers=[one for one in answer.headers.multi_items() if one[0] not in _OF_THE_WIRE],
                content=bytes(content),
                request=answer.request,
            )

    def cut(self) -> None:
        """Ends what is under way, from any thread, for good."""
        self.ended.set()
        for line in list(self._lines):
            line.cut("it was stopped")

    def close(self) -> None:
        self._http.close()

    @contextlib.contextmanager
    def _line(self, whole_s: float) -> Iterator["_Line"]:
        line = _Line()
        late = f"its answer was not whole after {whole_s:g} s"
        timer = threading.Timer(whole_s, line.cut, [late])
        timer.daemon = True
        self._lines.add(line)
        timer.start()
        try:
            if self.ended.is_set():
                line.cut("it was stopped")
            yield line
        except httpx.HTTPError as error:
            if line.why is None:
                raise
            raise httpx.ReadTimeout(line.why) from error
        finally:
            timer.cancel()
            self._lines.discard(line)


_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")
"""Of the answer as it came; the one that we hand on is unpacked and whole."""


class _Line:
    """A connection, as soon as there is one."""

    def __init__(self) -> None:
        self._lock, self._socket = threading.Lock(), None
        self.why: str | None = None
        """None = it was not cut."""

    def trace(self, event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self.why is not None:
                    self._end()

    def cut(self, why: str) -> None:
        with self._lock:
            self.why = self.why or why
            self._end()

    def _end(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

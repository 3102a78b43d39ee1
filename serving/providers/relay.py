"""A provider's model for this process alone: chat completions on a port of the loopback address.

For programs of ours that play episodes and grade answers (an evaluation, a teacher): they speak the
chat form to a URL, whatever the provider speaks. Enters a provider's section; leaves a URL and the
key that it wants. Nothing is recorded here: whoever asks records. Invariant: the provider's own key
is in no answer.
"""

import contextlib
import itertools
import secrets
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import httpx
import msgspec

from flywheel.errors import FlywheelError
from flywheel.masking import Masking, masked
from flywheel.serving_section import ProviderSection
from serving.chat import Chat
from serving.limits import Limits
from serving.providers import PROTOCOLS
from serving.refusal import ApiError

_LIMITS = Limits(max_tokens=2**20, max_choices=1024)
_CONNECT_S = 10.0


class Relay(NamedTuple):
    url: str
    """Without /v1."""
    key: str


@contextlib.contextmanager
def relay(name: str, section: ProviderSection, key: str | None) -> Iterator[Relay]:
    """Until the block ends."""
    wanted = secrets.token_urlsafe(24)
    protocol = PROTOCOLS[section.protocol]
    timeout = httpx.Timeout(section.timeout_s, connect=_CONNECT_S)
    headers = {**section.headers, **protocol.headers(key), "content-type": "application/json"}
    with httpx.Client(timeout=timeout, headers=headers, follow_redirects=False) as client:
        asking = _Asking(name, section, key, client)
        handler = type("Handler", (_Handler,), {"asking": asking, "wanted": f"Bearer {wanted}"})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, name="relay", daemon=True)
        thread.start()
        try:
            yield Relay(f"http://127.0.0.1:{server.server_port}", wanted)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Asking:
    def __init__(
        self, name: str, section: ProviderSection, key: str | None, client: httpx.Client
    ) -> None:
        self.name, self.section, self._key, self._client = name, section, key, client
        self._protocol = PROTOCOLS[section.protocol]

    @contextlib.contextmanager
    def said(self, body: bytes) -> Iterator[tuple[str, Iterator[bytes]]]:
        """The answer's media type and its pieces.

        Raises:
            ApiError: as the provider refused, or it could not be asked.
        """
        chat = Chat(body, _LIMITS)
        asked = self._protocol.ask(chat, self.section.model).body
        url = self.section.url.rstrip("/") + self._protocol.route
        try:
            with self._client.stream("POST", url, content=asked) as answer:
                if answer.status_code != 200:
                    raise self._refusal(answer)
                stream = chat.streamed
                pieces = self._stream(chat, answer) if stream else self._whole(chat, answer)
                yield ("text/event-stream" if stream else "application/json"), pieces
        except httpx.HTTPError as error:
            text = f"the provider {self.name} did not answer: {error or type(error).__name__}"
            raise ApiError(502, text, code="engine_error") from error

    def _whole(self, chat: Chat, answer: httpx.Response) -> Iterator[bytes]:
        yield self._protocol.whole(chat, masked(answer.read(), self._key))

    def _stream(self, chat: Chat, answer: httpx.Response) -> Iterator[bytes]:
        turning = self._protocol.stream(chat)
        for piece in self._told(answer):
            yield piece if turning is None else turning.feed(piece)

    def _told(self, answer: httpx.Response) -> Iterator[bytes]:
        masking = Masking(self._key)
        for piece in answer.iter_bytes():
            yield masking.feed(piece)
        yield masking.rest()

    def _refusal(self, answer: httpx.Response) -> ApiError:
        said = masked(answer.read(), self._key).decode("utf-8", "replace")[:2000]
        status = 503 if answer.status_code == 529 else answer.status_code
        after = answer.headers.get("retry-after", "")
        text = f"the provider {self.name} refused with status {answer.status_code}: {said}"
        return ApiError(status, text, retry_after=int(after) if after.isdigit() else None)


class _Handler(BaseHTTPRequestHandler):
    asking: _Asking
    wanted: str

    def do_GET(self) -> None:
        """Which model there is."""
        listed = {"object": "list", "data": [{"id": self.asking.section.model}]}
        self._send(200, "application/json", msgspec.json.encode(listed))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            if not secrets.compare_digest(self.headers.get("authorization", ""), self.wanted):
                raise ApiError(401, "another key is wanted")
            if self.path != "/v1/chat/completions":
                raise ApiError(404, f"{self.path}: there are chat completions here alone")
            with self.asking.said(body) as (kind, pieces):
                first = next(pieces, b"")
                self._begin(200, kind)
                for piece in itertools.chain((first,), pieces):
                    self.wfile.write(piece)
        except ApiError as error:
            self._send(error.status, "application/json", error.body(), error.retry_after)
        except FlywheelError as error:
            said = ApiError(502, str(error), code="engine_error")
            self._send(said.status, "application/json", said.body())

    def _begin(self, status: int, kind: str, retry_after: int | None = None) -> None:
        """What ends the answer is the end of its connection."""
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("connection", "close")
        if retry_after is not None:
            self.send_header("retry-after", str(retry_after))
        self.end_headers()

    def _send(self, status: int, kind: str, body: bytes, retry_after: int | None = None) -> None:
        with contextlib.suppress(OSError):
            self._begin(status, kind, retry_after)
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: whoever asks has its own account."""

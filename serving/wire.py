"""Bytes between the gateway and its client: reading a body, sending an answer, noticing a hang-up.

Plain ASGI, since every layer between here and the socket is paid for with each request.
"""

import asyncio
from types import TracebackType

import msgspec
from starlette.types import Message, Receive, Scope, Send

from flywheel.ids import new_ulid
from serving.limits import Limits
from serving.refusal import ApiError, Headers

_ONCE = (
    b"authorization", b"x-api-key", b"host", b"origin", b"content-type", b"content-encoding",
    b"idempotency-key", b"x-conversation-id", b"x-flywheel-project", b"x-request-id",
    b"x-flywheel-tenant", b"x-flywheel-consent", b"x-flywheel-expires",
)  # fmt: skip
"""Headers that who reads the first and who reads the last one must not read differently."""

_REST, _REST_S = 32 * 2**20, 2.0
"""Of a body that was refused: bytes and seconds that it may still take to end."""


class HungUp(Exception):
    """The client is gone: there is nobody left to answer."""


def headers_of(scope: Scope, limits: Limits) -> dict[bytes, bytes]:
    """
    Raises:
        ApiError: 431: more of them than a request may bring; 400: one that must stand once stands
            there twice.
    """
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if sum([len(name) + len(value) for name, value in headers]) > limits.header:
        raise ApiError(431, f"the headers are larger than {limits.header} bytes")
    found = dict(headers)
    if len(found) != len(headers):
        names = [name for name, _ in headers]
        twice = next((name for name in _ONCE if names.count(name) > 1), None)
        if twice is not None:
            raise ApiError(400, f"the header {twice.decode()} stands there twice")
    return found


def request_id_of(headers: dict[bytes, bytes]) -> str:
    """The client's own, where it is a short printable word; else a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    if 0 < len(given) <= 128 and given.isascii() and given.isprintable():
        return given
    return f"req-{new_ulid().lower()}"


async def read_body(
    headers: dict[bytes, bytes],
    receive: Receive,
    limits: Limits,
    encodings: tuple[bytes, ...] = (b"identity",),
) -> bytes:
    """The body as it came, still packed where it is.

    Raises:
        ApiError: 408, 413 or 415.
        HungUp: the client left before its body was whole.
    """
    if headers.get(b"content-encoding", b"identity") not in encodings:
        names = " or ".join(name.decode() for name in encodings)
        raise ApiError(415, f"the body's content-encoding is not understood: send it {names}")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > limits.body:
        if b"expect" not in headers:
            await _rest(receive)
        raise _too_large(limits)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.read_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HungUp
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > limits.body:
                    pieces.clear()
                    await _rest(receive, message)
                    raise _too_large(limits)
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not come within {limits.read_s:g} s") from error


async def _rest(receive: Receive, last: Message | None = None) -> None:
    """Lets a body that is refused come to its end: a connection that is closed on unread bytes is
    reset, and the client may never see why it was refused. Bounded, since it may not mean to end.
    """
    size = 0
    try:
        async with asyncio.timeout(_REST_S):
            while (last is None or last.get("more_body", False)) and size < _REST:
                last = await receive()
                size += len(last.get("body", b""))
    except TimeoutError:
        return


def _too_large(limits: Limits) -> ApiError:
    return ApiError(413, f"the body is larger than {limits.body} bytes", code="request_too_large")


async def start(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def more(send: Send, body: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})


async def answer(send: Send, status: int, body: bytes, headers: Headers) -> None:
    await start(send, status, [*headers, (b"content-length", str(len(body)).encode())])
    await more(send, body, last=True)


async def answer_json(send: Send, content: object, headers: Headers, status: int = 200) -> None:
    body = msgspec.json.encode(content)
    await answer(send, status, body, [(b"content-type", b"application/json"), *headers])


async def refuse(send: Send, error: ApiError, headers: Headers, body: bytes | None = None) -> None:
    """`body`: the error in another protocol's shape; None = in OpenAI's."""
    await answer(send, error.status, body or error.body(), [*error.headers(), *headers])


class Attended:
    """While a client waits: its hang-up interrupts the work in this block as `HungUp`."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watch = asyncio.create_task(self._until_gone())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.cancel()
        ours = self._gone and isinstance(error, asyncio.CancelledError)
        # Where the server stops too, that reason to cancel stays.
        if ours and self._task.uncancel() == 0:
            raise HungUp from error

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

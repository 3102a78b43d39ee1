"""One call of an OpenAI-compatible server's chat route, as any client would make it.

Enter: a session, an address and a request. Leaves: the answer's bytes. Invariant: what speaks of
the one call (too long, not understood) is a `CallFailed`; all else, which speaks of the engine, is
an `EngineError`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from flywheel.errors import EngineError, FlywheelError

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

LARGEST = 64 * 2**20
"""Bytes of an answer."""
_OF_THE_CALL = {400, 413, 422, 500}
"""HTTP statuses that speak of one call; any other says that the engine cannot be used."""
SPENT = "budget_spent"
"""The code with which the interception refuses calls beyond an episode's budget."""
_TOO_LONG = ("context length", "context_length", "maximum context", "prompt and answer together")


class CallFailed(FlywheelError):
    """This one call failed; the next may not."""

    def __init__(self, status: int, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code

    @property
    def too_long(self) -> bool:
        """Whether the prompt has no room in the model's window."""
        told = f"{self.code} {self}".lower()
        return self.status in (400, 413, 422) and any(word in told for word in _TOO_LONG)


class Reply(NamedTuple):
    data: bytes
    headers: Mapping[str, str]


def connect(timeout_s: float, *, proxies: bool = False) -> "ClientSession":
    """Connections for many calls; must be made in the loop that uses them, and closed.

    Args:
        proxies: may go by the proxy that the machine's environment names.
    """
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=proxies,
        read_bufsize=2**20,
    )


def is_local(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def base_of(url: str) -> str:
    """The address with its /v1."""
    base = url.rstrip("/")
    return base if base.endswith("/v1") else base + "/v1"


async def complete(
    session: "ClientSession", base: str, body: bytes, headers: Mapping[str, str]
) -> Reply:
    """What the chat route of `base` answers to `body`.

    Raises:
        CallFailed: the server refused this call, or failed at it.
        EngineError: it cannot be used.
    """
    import aiohttp

    try:
        async with session.post(
            base + "/chat/completions",
            data=body,
            headers={"content-type": "application/json", **headers},
        ) as response:
            data = await bounded(response, LARGEST)
            if data is None:
                raise CallFailed(response.status, f"an answer of more than {LARGEST} bytes")
            if response.status == 200:
                return Reply(data, response.headers)
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise EngineError(f"no answer from the engine at {base}: {reason}") from error
    message, code = words(data)
    said = f"HTTP {status} from {base}: {message}"
    if status not in _OF_THE_CALL and code != SPENT:
        raise EngineError(said)
    raise CallFailed(status, said, code=code)


async def bounded(response: "ClientResponse", largest: int) -> bytes | None:
    """The body; None = it has more than `largest` bytes, and the rest is not taken."""
    pieces, size = [], 0
    while piece := await response.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > largest:
            response.close()
            return None
    return b"".join(pieces)


def words(data: bytes) -> tuple[str, str]:
    """The message of an error, and its code."""
    try:
        content: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data[:500].decode("utf-8", "replace"), ""
    error = content.get("error", content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return str(error)[:500], ""
    message = error.get("message") or error.get("detail") or error
    return str(message)[:500], str(error.get("code") or "")

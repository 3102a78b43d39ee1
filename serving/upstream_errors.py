"""What went wrong between the gateway and who answers, as an error that a client can act on.

Enter what the connection raised, or a status and its body; leaves an `ApiError`. What the other
side says of the request passes (400); what is its own fault never looks like the client's.
"""

from typing import Any

import msgspec

from serving.arriving import Arriving, Broken, Unreachable
from serving.refusal import ApiError

_BOUNDS = ("max_tokens", "max_completion_tokens")


def refused(who: str, response: Arriving, said: bytes) -> ApiError:
    """A status that is not 200: 4xx about the request pass, the rest is its own fault."""
    status, (message, param, code) = response.status, _words(said)
    if status in (401, 403):
        return ApiError(502, f"{who} wants another key: {message}", code="engine_error")
    if status == 404:
        # The gateway routed it, so the adapter is not there yet: after a restart, for a moment.
        return NotLoaded(f"{who} has not loaded this model: {message}")
    if status in (400, 413, 422):
        return ApiError(400, message, param=param, code=code)
    if status in (429, 503, 529):
        after = _seconds(response.headers.get("retry-after"))
        return ApiError(min(status, 503), message, code=code or "engine_busy", retry_after=after)
    return ApiError(502, f"{who} failed with status {status}: {message}", code="engine_error")


class named:
    """What the connection raises in this block, as ours. A class, since it is entered for each
    piece of a stream."""

    __slots__ = ("_who",)

    def __init__(self, who: str) -> None:
        self._who = who

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, TimeoutError):
            text = f"{self._who} took too long"
            raise ApiError(504, text, code="engine_timeout") from error
        if isinstance(error, Unreachable):
            raise away(f"{self._who} cannot be reached; it may be starting") from error
        if isinstance(error, Broken):
            text = f"{self._who} cut the connection: {error}"
            raise ApiError(502, text, code="engine_cut", retry_after=1) from error


class NotLoaded(ApiError):
    """The engine runs without this one model; another that it has could answer."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, code="engine_away", retry_after=2)


def away(message: str) -> ApiError:
    return ApiError(503, message, code="engine_away", retry_after=2)


def no_room(status: int, body: bytes) -> bool:
    """Whether the engine refused the bound on the answer's length."""
    return status == 400 and _words(body)[1] in _BOUNDS


def _seconds(said: str | None) -> int:
    """Until it may be asked again; it may say a date, or nothing."""
    try:
        return min(max(int(float(said or 2)), 1), 3600)
    except (ValueError, OverflowError):
        return 2


def _words(body: bytes) -> tuple[str, str | None, str | None]:
    try:
        content: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:500].decode("utf-8", "replace"), None, None
    error = content.get("error", content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return str(error)[:500], None, None
    message = error.get("message") or error.get("detail") or error
    param, code = error.get("param"), error.get("code")
    return (
        str(message)[:2000],
        param if isinstance(param, str) else None,
        code if isinstance(code, str) else None,
    )

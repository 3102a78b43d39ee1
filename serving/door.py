"""The door of the gateway: what comes before every endpoint, and what is refused there.

Enters a connection's request; leaves one that has an id, headers within bounds and the caller that
its key names, or a refusal in the shape of the protocol that it speaks. Invariant: nothing behind
it hears of a request whose key may not do what is asked.
"""

import contextlib
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serving import wire
from serving.dialects import DIALECTS, refusal
from serving.guesses import Guesses
from serving.key_file import Scope as Right
from serving.keys import Caller
from serving.otlp import PATHS as OTLP_PATHS
from serving.refusal import ApiError

if TYPE_CHECKING:
    from serving.gateway import Gateway

_OPEN = frozenset(("/health", "/ready", "/openapi.json"))
"""Paths that need no key and tell nothing that does."""
_FAULT = "a fault in the gateway; its log says more"
_RIGHTS: dict[str, Right] = {
    "/v1/feedback": "feedback",
    "/metrics": "admin",
    **dict.fromkeys(OTLP_PATHS, "ingest"),
}
"""What a key must be allowed at a path; at all others `infer`."""


class Door:
    """Comes before every endpoint: the headers' size, the key, the request's id."""

    def __init__(self, inner: ASGIApp, gateway: "Gateway") -> None:
        self._inner, self._gateway = inner, gateway
        self._guesses = Guesses(gateway.keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        request_id = wire.request_id_of(dict(scope["headers"]))
        try:
            headers = wire.headers_of(scope, self._gateway.limits)
            if scope["path"] not in _OPEN:
                scope["flywheel.caller"] = self._admit(scope, headers)
        except ApiError as error:
            self._gateway.recording.counts[f"refused_{error.status}"] += 1
            named = [(b"x-request-id", request_id.encode())]
            await wire.refuse(send, error, named, refusal(scope, error))
            return
        scope["flywheel.headers"], scope["flywheel.request_id"] = headers, request_id
        if scope["method"] == "POST" and scope["path"] in DIALECTS:
            await self._straight(scope, receive, send)
        else:
            await self._inner(scope, receive, send)

    async def _straight(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Where a model is asked, without the layers that other routes pass."""
        try:
            await self._gateway.inference(scope, receive, send)
        except Exception:
            # Refused by uvicorn, where the answer had begun: then it cuts the connection.
            with contextlib.suppress(RuntimeError):
                error = ApiError(500, _FAULT)
                await wire.refuse(send, error, [], refusal(scope, error))
            raise

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        address = (scope.get("client") or ("",))[0]
        return self._guesses.admit(headers, _RIGHTS.get(scope["path"], "infer"), address)


class Endpoint:
    """A function from a request to a status and JSON, as ASGI."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = [(b"x-request-id", scope["flywheel.request_id"].encode())]
        try:
            status, content = await self._answer(scope, receive)
        except wire.HungUp:
            return
        except ApiError as error:
            await wire.refuse(send, error, named, refusal(scope, error))
            return
        if isinstance(content, str):
            text = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8"), *named]
            await wire.answer(send, status, content.encode(), text)
        else:
            await wire.answer_json(send, content, named, status)


async def no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = ApiError(error.status_code, f"{request.url.path}: {error.detail}")
    return _as_response(said, request)


async def fault(request: Request, error: Exception) -> Response:
    """Starlette logs the traceback; the client learns that it was not its fault, and no more."""
    return _as_response(ApiError(500, _FAULT), request)


def _as_response(error: ApiError, request: Request) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(refusal(request.scope, error), error.status, headers)

"""What the gateway says when it does not answer: an error in OpenAI's shape, with its status.

Every refusal that a client sees is an `ApiError`; the endpoints turn it into bytes at one place.
"""

import msgspec

from flywheel.errors import FlywheelError

Headers = list[tuple[bytes, bytes]]

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    502: "upstream_error",
    503: "service_unavailable",
    504: "timeout_error",
}


class ApiError(FlywheelError):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        more: Headers | None = None,
    ) -> None:
        """`more`: headers that say more of it."""
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after
        """Seconds after which trying again makes sense. None = not worth it."""
        self.more = more or []

    def body(self) -> bytes:
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": _KINDS.get(self.status, "server_error"),
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def headers(self) -> Headers:
        headers = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.status in (408, 413, 431):
            # The rest of the request is unread: the connection cannot be used again.
            headers.append((b"connection", b"close"))
        return [*headers, *self.more]


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)

"""The protocols that clients may speak, by the path that they are spoken at. A new one is a file
and a line here."""

from starlette.types import Scope

from serving.dialects.chat import ChatDialect
from serving.dialects.completions import CompletionsDialect
from serving.dialects.contract import Dialect
from serving.dialects.messages import CountTokensDialect, MessagesDialect
from serving.dialects.responses import ResponsesDialect
from serving.refusal import ApiError
from storage.remembered import Remembered

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": ChatDialect(),
    "/v1/completions": CompletionsDialect(),
    "/v1/responses": ResponsesDialect(),
    "/v1/messages": MessagesDialect(),
    "/v1/messages/count_tokens": CountTokensDialect(),
}


def dialects(remembered: Remembered) -> dict[str, Dialect]:
    """Those of one gateway.

    Args:
        remembered: what answers leave for requests that go on from them.
    """
    return {**DIALECTS, "/v1/responses": ResponsesDialect(remembered)}


def refusal(scope: Scope, error: ApiError) -> bytes:
    """An error as a client understands it who is refused at the door, at whichever path."""
    path, dialect = scope["path"], DIALECTS.get(scope["path"])
    if dialect is None:
        named = any(name == b"anthropic-version" for name, _ in scope["headers"])
        messages = named or path.startswith("/v1/messages/")
        dialect = DIALECTS["/v1/messages" if messages else "/v1/chat/completions"]
    return dialect.refuse(error)

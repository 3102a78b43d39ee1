"""Which provider's API a logged exchange is of: OpenAI's chat or responses, Anthropic's messages.

What enters is one row, {request, response} or a bare response; the response decides, the request
where it says nothing (a failed call). Cheap: some look-ups, never a walk.
"""

from typing import Any, Literal, TypeAlias

Api: TypeAlias = Literal["chat", "responses", "anthropic"]

STORED = frozenset(("messages", "input_messages", "input", "tools", "temperature", "input_user"))
"""Keys beside a bare answer that say what was asked: then it is a stored completion."""
_LOOKED_AT = 2048
"""Characters of a stream that tell whose it is."""
_NO_TEXT = ("embed", "moderation", "tts", "whisper")


def api_of(row: object) -> Api | None:
    """The API of a row; None = it is no exchange of these."""
    if not isinstance(row, dict):
        return None
    if "request" not in row:
        said = api_of_response(row)
        if said == "chat":
            return said if STORED.isdisjoint(row) else None
        return None if said == "responses" and "input" in row else said
    request, response = row["request"], row.get("response")
    if type(response) is dict and "choices" in response and type(request) is dict:
        return "chat" if "messages" in request else None  # by far the commonest
    said = api_of_response(response)
    if not isinstance(request, dict):
        return said if request in (None, "") else None
    if said is not None:
        return said if "messages" in request or said == "responses" else None
    return None if _is_list(response) else _asked(request)


def api_of_response(value: object) -> Api | None:
    if isinstance(value, str):
        return _streamed(value[:_LOOKED_AT])
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, dict):
        return None
    kind = value.get("object")
    if isinstance(kind, str):
        if kind.startswith("chat.completion"):
            return "chat" if isinstance(value.get("choices"), list) else None
        if kind == "response" or kind.startswith("response."):
            return "responses"
    kind = value.get("type")
    if kind == "message":
        return "anthropic" if isinstance(value.get("content"), list) else None
    if kind == "error":
        return "anthropic" if isinstance(value.get("error"), dict) else None
    if isinstance(kind, str):
        if kind == "message_start":
            return "anthropic"
        if kind.startswith("response.") and ("response" in value or "sequence_number" in value):
            return "responses"
    return None


def _streamed(head: str) -> Api | None:
    if "message_start" in head:
        return "anthropic"
    if '"response.created"' in head or '"response.queued"' in head:
        return "responses"
    return "chat" if '"chat.completion.chunk"' in head else None


def _is_list(response: object) -> bool:
    """An embedding's or a moderation's answer."""
    return isinstance(response, dict) and (
        response.get("object") == "list" or "results" in response
    )


def _asked(request: dict[str, Any]) -> Api | None:
    if isinstance(request.get("messages"), list):
        return "anthropic" if "system" in request or _schemas(request.get("tools")) else "chat"
    if "messages" in request:
        return "chat"
    model = request.get("model")
    if "input" not in request or (isinstance(model, str) and any(one in model for one in _NO_TEXT)):
        return None
    return "responses"


def _schemas(tools: object) -> bool:
    first = tools[0] if isinstance(tools, list) and tools else None
    return isinstance(first, dict) and "input_schema" in first

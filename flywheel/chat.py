"""Messages as an OpenAI-compatible server takes them.

Enter: our messages. Leave: plain dicts and JSON. Invariant: a prompt is sent whole or not at all.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from flywheel.errors import BadRecord
from flywheel.records import (
    Image,
    Message,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
)


def to_chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """
    Raises:
        BadRecord: a part that was not kept whole, so that the prompt cannot be sent again.
    """
    return [said for message in messages for said in _said(message)]


def _said(message: Message) -> list[dict[str, Any]]:
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    if results:
        answered = ((part, {"tool_call_id": part.id} if part.id else {}) for part in results)
        return [{"role": "tool", "content": part.content, **extra} for part, extra in answered]
    said: dict[str, Any] = {"role": message.role, "content": _content(message.parts)}
    if message.name:
        said["name"] = message.name
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id or f"call_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(message.tool_calls)
        ]
    refusals = [part.text for part in message.parts if isinstance(part, Refusal)]
    return [{**said, "refusal": refusals[0]} if refusals else said]


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]] | None:
    """None stays None; one text stays a string."""
    apart = (ToolCall, Reasoning, Refusal)
    shown = [_shown(part) for part in parts if not isinstance(part, apart)]
    if not shown:
        return None
    if len(shown) == 1 and shown[0]["type"] == "text":
        return str(shown[0]["text"])
    return shown


def _shown(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image) and part.url:
        return {"type": "image_url", "image_url": {"url": part.url}}
    kind = type(part).__name__.lower()
    raise BadRecord(f"a part of kind {kind} cannot be sent to a model again")


def body_of(asked: dict[str, Any]) -> bytes:
    """A request as JSON; the lone half of a surrogate pair becomes U+FFFD."""
    try:
        return msgspec.json.encode(asked)
    except UnicodeEncodeError:
        return msgspec.json.encode(_mended(asked))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mended(key): _mended(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(inner) for inner in value]
    return value

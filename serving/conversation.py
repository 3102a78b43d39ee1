"""OpenAI's messages as ours, whatever parts they have; nothing that was said is dropped.

What is too large for a record goes to the raw store by way of `Offload`; its digest stays. A field
that we do not know becomes an `Unknown` part, kept as it came.
"""

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from flywheel.errors import BadRecord
from flywheel.records import (
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    Truncated,
    Unknown,
)

Put = Callable[[bytes], str]
_KEPT = 2048
"""Characters of an over-long text that stay readable in its record."""
_TOOLS = ("tool", "function")
_NOTHING: tuple[Any, ...] = (None, [], {})
_READ = {
    "role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal",
    "reasoning_content", "reasoning", "is_error",
}  # fmt: skip


class Offload:
    """Where large values go: `put` stores bytes and returns their digest."""

    def __init__(self, put: Put, *, text: int, inline_image: int) -> None:
        self.put, self.limit, self.inline_image = put, text, inline_image

    def text(self, text: str) -> Text | Truncated:
        return self.truncated(text) or Text(text=text)

    def truncated(self, text: str) -> Truncated | None:
        """None = it is short enough to stay as it is."""
        if len(text) * 4 <= self.limit:
            return None
        data = text.encode("utf-8", "replace")
        if len(data) <= self.limit:
            return None
        return Truncated(kept=text[:_KEPT], size=len(data), digest=self.put(data))

    def image(self, url: str) -> Image:
        if not url.startswith("data:"):
            return Image(url=url)
        head, _, payload = url.partition(",")
        media_type = head[5:].split(";")[0] or None
        if len(url) <= self.inline_image:
            return Image(url=url, media_type=media_type)
        try:
            data = base64.b64decode(payload, validate=True) if ";base64" in head else url.encode()
        except (binascii.Error, ValueError):
            data = url.encode()
        return Image(digest=self.put(data), media_type=media_type)

    def unknown(self, kind: str, raw: Any) -> Unknown | Truncated:
        data = msgspec.json.encode(raw)
        if len(data) <= self.limit:
            return Unknown(kind=kind, raw=raw)
        return Truncated(
            kept=data[:_KEPT].decode("utf-8", "ignore"), size=len(data), digest=self.put(data)
        )


def messages_of(messages: list[dict[str, Any]], offload: Offload) -> tuple[Message, ...]:
    """A request's messages.

    Raises:
        BadRecord: one of them is not a message; `field` names it.
    """
    return tuple(
        message_of(message, offload, f"messages[{place}]") for place, message in enumerate(messages)
    )


def message_of(message: dict[str, Any], offload: Offload, where: str = "message") -> Message:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRecord("must be a string", field=f"{where}.role")
    content, name = message.get("content"), message.get("name")
    if isinstance(content, str) and role not in _TOOLS and _nothing_else(message):
        return Message(role=role, parts=(offload.text(content),))
    parts = list(_reasoning(message, offload))
    if role in _TOOLS:
        parts += _tool_result(message, content, offload, where)
    else:
        parts += _content(content, offload, f"{where}.content")
    if isinstance(refusal := message.get("refusal"), str):
        parts.append(Refusal(text=refusal))
    parts += _calls(message, offload, where)
    parts += [
        offload.unknown(f"message.{key}", value)
        for key, value in message.items()
        if key not in _READ and value not in _NOTHING
    ]
    return Message(role=role, parts=tuple(parts), name=name if isinstance(name, str) else None)


def _nothing_else(message: dict[str, Any]) -> bool:
    """Most messages say a role and a text; the rest of their fields, if any, that there is none."""
    return len(message) == 2 or all(
        [value in _NOTHING or key in ("role", "content") for key, value in message.items()]
    )


def _reasoning(message: dict[str, Any], offload: Offload) -> Iterator[Part]:
    for key in ("reasoning_content", "reasoning"):
        text = message.get(key)
        if isinstance(text, str) and text:
            yield offload.truncated(text) or Reasoning(text=text)
            return
        if text:
            yield offload.unknown(f"message.{key}", text)
            return


def _content(content: Any, offload: Offload, where: str) -> Iterator[Part]:
    if content is None:
        return
    if isinstance(content, str):
        yield offload.text(content)
        return
    if not isinstance(content, list):
        raise BadRecord("must be a string, an array or null", field=where)
    for place, part in enumerate(content):
        if not isinstance(part, dict):
            raise BadRecord("must be an object", field=f"{where}[{place}]")
        yield _part(part, offload)


def _part(part: dict[str, Any], offload: Offload) -> Part:
    kind = part.get("type")
    inner = part.get(kind) if isinstance(kind, str) else None
    if kind == "text" and isinstance(inner, str):
        return offload.text(inner)
    if kind == "refusal" and isinstance(inner, str):
        return Refusal(text=inner)
    if kind == "image_url":
        url = inner.get("url") if isinstance(inner, dict) else inner
        if isinstance(url, str):
            return offload.image(url)
    if kind == "file" and isinstance(inner, dict):
        return _file(inner, offload)
    return offload.unknown(str(kind), part)


def _file(inner: dict[str, Any], offload: Offload) -> Part:
    data, name, file_id = (inner.get(key) for key in ("file_data", "filename", "file_id"))
    name = name if isinstance(name, str) else None
    if isinstance(data, str):
        # An image by any other name: the same data URL, stored by digest whatever its size.
        head, _, payload = data.partition(",")
        try:
            raw = base64.b64decode(payload or data, validate=True)
        except (binascii.Error, ValueError):
            raw = data.encode()
        media_type = head[5:].split(";")[0] if head.startswith("data:") else None
        return File(name=name, digest=offload.put(raw), media_type=media_type or None)
    if isinstance(file_id, str):
        return File(name=name, url=f"openai-file:{file_id}")
    return offload.unknown("file", inner)


def _tool_result(
    message: dict[str, Any], content: Any, offload: Offload, where: str
) -> Iterator[Part]:
    call_id, name = message.get("tool_call_id"), message.get("name")
    parts = list(_content(content, offload, f"{where}.content"))
    text = "".join(part.text for part in parts if isinstance(part, Text))
    yield ToolResult(
        content=text,
        id=call_id if isinstance(call_id, str) else None,
        name=name if isinstance(name, str) else None,
        is_error=True if message.get("is_error") is True else None,
    )
    yield from (part for part in parts if not isinstance(part, Text))


def _calls(message: dict[str, Any], offload: Offload, where: str) -> Iterator[Part]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadRecord("must be an array", field=f"{where}.tool_calls")
    for place, call in enumerate(calls):
        if not isinstance(call, dict):
            raise BadRecord("must be an object", field=f"{where}.tool_calls[{place}]")
        yield _call(call.get("function"), call.get("id"), call, offload)
    if legacy := message.get("function_call"):
        yield _call(legacy, None, legacy, offload)


def _call(function: Any, call_id: Any, raw: Any, offload: Offload) -> Part:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return offload.unknown("tool_call", raw)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else msgspec.json.encode(arguments).decode()
    return offload.truncated(arguments) or ToolCall(
        name=function["name"],
        arguments=arguments,
        id=call_id if isinstance(call_id, str) else None,
    )

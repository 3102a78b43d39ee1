"""OpenAI's chat messages and tools, as rows of task sets hold them, become records.

Enter: any JSON. Leave: messages and tool schemas as `flywheel.chat` sends them. Invariant: what
cannot be understood raises BadRecord with its field, so that the row is told and left.
"""

from collections.abc import Iterator
from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Image, Message, Part, Refusal, Text, ToolCall, ToolResult, say

ROLES = ("system", "developer", "user", "assistant", "tool")


def prompt_of(value: Any, field: str, system: str = "") -> tuple[Message, ...]:
    """The messages of a prompt: a text, or a list of messages; `system` before all."""
    if isinstance(value, str):
        if not value.strip():
            raise BadRecord("is empty: a problem needs a prompt", field=field)
        messages: tuple[Message, ...] = (say("user", value),)
    else:
        messages = messages_of(value, field)
    return (say("system", system), *messages) if system else messages


def messages_of(value: Any, field: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise BadRecord(f"is {_kind(value)}: give a text or a list of messages", field=field)
    return tuple(_message(one, f"{field}[{at}]") for at, one in enumerate(value))


def tools_of(value: Any, field: str) -> tuple[dict[str, Any], ...]:
    """Tool schemas in OpenAI's chat form; the flat one of its Responses is brought to it."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRecord(f"is {_kind(value)}: give a list of tools", field=field)
    return tuple(_tool(one, f"{field}[{at}]") for at, one in enumerate(value))


def _tool(value: Any, field: str) -> dict[str, Any]:
    inner = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise BadRecord("has no name: give {type, function: {name, parameters}}", field=field)
    known = {key: inner[key] for key in ("name", "description", "parameters") if key in inner}
    if not isinstance(known.setdefault("parameters", {"type": "object"}), dict):
        raise BadRecord("is no JSON schema", field=f"{field}.parameters")
    return {"type": "function", "function": known}


def _message(value: Any, field: str) -> Message:
    if not isinstance(value, dict):
        raise BadRecord(f"is {_kind(value)}: give {{role, content}}", field=field)
    role = value.get("role")
    if role not in ROLES:
        known = ", ".join(ROLES)
        raise BadRecord(f"is {str(role)[:40]!r}: one of {known}", field=f"{field}.role")
    if role == "tool":
        content = value.get("content")
        if not isinstance(content, str):
            raise BadRecord(f"is {_kind(content)}, not text", field=f"{field}.content")
        id = value.get("tool_call_id")
        return Message(role=role, parts=(ToolResult(content=content, id=id),))
    parts = (*_content(value.get("content"), f"{field}.content"), *_calls(value, field))
    return Message(role=role, parts=parts, name=value.get("name"))


def _content(value: Any, field: str) -> Iterator[Part]:
    if value is None:
        return
    if isinstance(value, str):
        yield Text(text=value)
        return
    if not isinstance(value, list):
        raise BadRecord(f"is {_kind(value)}: give a text or a list of parts", field=field)
    for at, part in enumerate(value):
        yield _part(part, f"{field}[{at}]")


def _part(part: Any, field: str) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return Text(text=part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return Refusal(text=part["refusal"])
    url = part.get("image_url") if kind in ("image_url", "input_image") else None
    url = url.get("url") if isinstance(url, dict) else url
    if isinstance(url, str):
        return Image(url=url)
    raise BadRecord(f"is a part of kind {str(kind)[:40]!r}: text or image_url", field=field)


def _calls(value: dict[str, Any], field: str) -> Iterator[ToolCall]:
    for at, call in enumerate(value.get("tool_calls") or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRecord("names no function", field=f"{field}.tool_calls[{at}]")
        arguments = str(function.get("arguments") or "{}")
        yield ToolCall(id=call.get("id"), name=function["name"], arguments=arguments)


def _kind(value: Any) -> str:
    return "missing" if value is None else type(value).__name__

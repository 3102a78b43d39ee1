"""Items of OpenAI's Responses API (input and output alike) as messages.

What enters is a list of items; what leaves are messages in the shape that chat has: all that the
model said in one go (reasoning, texts, calls) is one assistant message, each tool's output a tool
message. Invariant: items of tools that the provider runs are kept whole, as Unknown parts, their
bytes in the raw store: nobody else could answer them.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Message, Part, Unknown

from .messages import name_of
from .parsed import Rest
from .parts import picture, read_parts, tool_call, tool_result

_MESSAGE = frozenset(("type", "role", "content", "status"))
_CALL = frozenset(("type", "name", "arguments", "input", "call_id", "id", "status"))
_RAN = frozenset(("type", "call_id", "output", "status"))
_THOUGHT = frozenset(("type", "summary", "content", "encrypted_content", "status"))
_LEAST_BYTES = 1024
"""Characters from which base64 inside an item goes to the raw store."""
_BY_CALLER = {
    "local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation",
    "computer_call": "action",
}  # fmt: skip
"""Calls that the caller runs, by the key that holds what is asked."""


def read_items(values: object, rest: Rest, path: str) -> tuple[Message, ...]:
    """The messages of a text or of a list of items.

    Raises:
        BadRecord: it is neither, or one of them is no item; names which.
    """
    if isinstance(values, str):
        return (Message(role="user", parts=(rest.text(values),)),)
    if not isinstance(values, list):
        raise BadRecord(f"is {name_of(values)}, not text or a list of items", field=path)
    messages: list[Message] = []
    turn: list[Part] | None = None
    for at, item in enumerate(values):
        place = f"{path}[{at}]"
        role, parts = _read(item, rest, place)
        if role == "assistant":
            turn = [*(turn or ()), *parts]
            continue
        if turn is not None:
            messages.append(Message(role="assistant", parts=tuple(turn)))
            turn = None
        messages.append(Message(role=role, parts=tuple(parts)))
    if turn is not None:
        messages.append(Message(role="assistant", parts=tuple(turn)))
    return tuple(messages)


def _read(item: object, rest: Rest, path: str) -> tuple[str, list[Part]]:
    if isinstance(item, str):
        return "user", [rest.text(item)]
    if not isinstance(item, dict):
        raise BadRecord(f"is {name_of(item)}, not an item", field=path)
    kind = item.get("type")
    if not isinstance(kind, str):
        kind = "message"
    _note_status(item, rest, path)
    if kind == "message":
        role = item.get("role")
        if not isinstance(role, str) or not role:
            raise BadRecord(f"is {name_of(role)}, not a role", field=f"{path}.role")
        rest.put_others(item, _MESSAGE, path)
        return role, read_parts(item.get("content"), rest, f"{path}.content")
    if kind.endswith("_call_output"):
        rest.put_others(item, _RAN, path)
        output = item.get("output")
        if kind == "computer_call_output" and isinstance(output, dict):
            output = [output]
        return "tool", tool_result(output, item.get("call_id"), None, rest, f"{path}.output")
    return "assistant", _said(kind, item, rest, path)


def _said(kind: str, item: dict[str, Any], rest: Rest, path: str) -> list[Part]:
    if kind in ("function_call", "custom_tool_call"):
        rest.put_others(item, _CALL, path)
        rest.put(f"{path}.id", item.get("id") if item.get("call_id") else None)
        asked = item.get("arguments", item.get("input"))
        id = item.get("call_id") or item.get("id")
        return tool_call(item.get("name"), asked, id, rest)
    if kind in _BY_CALLER:
        key = _BY_CALLER[kind]
        rest.put_others(item, _CALL | {key}, path)
        id = item.get("call_id") or item.get("id")
        return tool_call(kind.removesuffix("_call"), item.get(key), id, rest)
    if kind == "reasoning":
        rest.put_others(item, _THOUGHT, path)
        known = {key: item[key] for key in _THOUGHT & item.keys() if key != "status"}
        return read_parts(known, rest, path)
    if kind == "image_generation_call" and isinstance(item.get("result"), str):
        drawn = f"data:image/{item.get('output_format') or 'png'};base64,{item['result']}"
        others = {key: one for key, one in item.items() if key != "result"}
        return [picture(drawn, rest), Unknown(kind=kind, raw=rest.bounded(others))]
    return [Unknown(kind=kind, raw=rest.bounded(offloaded(item, rest)))]


def _note_status(item: dict[str, Any], rest: Rest, path: str) -> None:
    if item.get("status") not in (None, "completed"):
        rest.put(f"{path}.status", item["status"])


def offloaded(value: Any, rest: Rest) -> Any:
    """`value` with the bytes of its data: addresses in the raw store, their digests in place."""
    if isinstance(value, dict):
        return {key: offloaded(one, rest) for key, one in value.items()}
    if isinstance(value, list):
        return [offloaded(one, rest) for one in value]
    if isinstance(value, str) and len(value) >= _LEAST_BYTES and value.startswith("data:"):
        found = picture(value, rest)
        digest = getattr(found, "digest", None)
        if digest is not None:
            return {"digest": digest, "media_type": getattr(found, "media_type", None)}
    return value

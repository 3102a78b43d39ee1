"""Whether calls that a model made are the ones that were wanted, as BFCL compares them.

Enter: calls as written, the wanted ones with the values that each argument may have, the functions
on offer. Leave: which calls are right, and why others are not. Invariant: the order of calls does
not matter, and each wanted call is met by at most one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.records import Message, ToolCall

_LOOSE = re.compile(r"[ ,./\-_*^'\"]")
"""What texts are compared without, as BFCL does."""
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def made(message: Message) -> list[ToolCall]:
    """The calls of an answer: the engine's, or those that a model wrote as its whole text (JSON, or
    <tool_call> tags) where the engine reads none."""
    if message.tool_calls:
        return list(message.tool_calls)
    text = message.text.strip()
    parts = _TAGGED.findall(text) or ([text] if text[:1] in ("{", "[") else [])
    return [call for part in parts for call in _written(part)]


def right(
    calls: Sequence[ToolCall],
    wanted: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> list[bool]:
    """Parallel to `calls`: whether each meets a wanted one of its own. Where several could, they
    are given out so that the most are right."""
    fits = [[not why_not(call, one, tools) for one in wanted] for call in calls]
    owner: dict[int, int] = {}

    def give(call: int, tried: set[int]) -> bool:
        for at, fit in enumerate(fits[call]):
            if fit and at not in tried:
                tried.add(at)
                if at not in owner or give(owner[at], tried):
                    owner[at] = call
                    return True
        return False

    for call in range(len(calls)):
        give(call, set())
    met = set(owner.values())
    return [call in met for call in range(len(calls))]


def why_not(
    call: ToolCall, wanted: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> str | None:
    """Why a call is not the wanted one; None = it is."""
    if call.name != wanted["name"]:
        return f"calls {call.name}, not {wanted['name']}"
    try:
        given = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return "its arguments are no JSON"
    if not isinstance(given, dict):
        return "its arguments are no object"
    schema = _schema(call.name, tools)
    allowed: Mapping[str, list[Any]] = wanted["arguments"]
    for name in schema.get("required", ()):
        if name not in given:
            return f"{name} is missing"
    for name, value in given.items():
        if name not in allowed:
            return f"{name} is not asked for"
        kind = schema.get("properties", {}).get(name, {}).get("type")
        # The benchmark has arguments whose right value is of another type than the schema's.
        if not _is(value, kind) and type(value) not in map(type, allowed[name]):
            return f"{name} is {type(value).__name__}, not {kind}"
        if not any(_equal(value, one) for one in allowed[name]):
            return f"{name} has another value"
    left = [name for name in allowed if name not in given and "" not in allowed[name]]
    return f"{left[0]} is missing" if left else None


def _written(text: str) -> list[ToolCall]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = found if isinstance(found, list) else [found]
    calls = []
    for one in found:
        arguments = one.get("arguments", one.get("parameters")) if isinstance(one, dict) else None
        if not isinstance(arguments, dict) or not isinstance(one.get("name"), str):
            return []
        calls.append(ToolCall(name=one["name"], arguments=json.dumps(arguments)))
    return calls


def _schema(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for tool in tools:
        function = tool.get("function", {})
        if function.get("name") == name:
            parameters: Mapping[str, Any] = function.get("parameters") or {}
            return parameters
    return {}


def _is(value: Any, kind: Any) -> bool:
    """A truth value is no number; an unknown type is any."""
    types = _TYPES.get(kind) if isinstance(kind, str) else None
    if types is None:
        return True
    return isinstance(value, types) and (kind == "boolean" or not isinstance(value, bool))


def _equal(value: Any, allowed: Any) -> bool:
    """`allowed` of an object holds, under each key, the values that it may have."""
    if isinstance(value, str) and isinstance(allowed, str):
        return _LOOSE.sub("", value).lower() == _LOOSE.sub("", allowed).lower()
    if isinstance(value, list) and isinstance(allowed, list):
        pairs = zip(value, allowed, strict=False)
        return len(value) == len(allowed) and all(_equal(one, other) for one, other in pairs)
    if isinstance(value, dict) and isinstance(allowed, dict):
        if not value.keys() <= allowed.keys():
            return False
        return all(_may(value, key, options) for key, options in allowed.items())
    if isinstance(value, bool) or isinstance(allowed, bool):
        return value is allowed
    return bool(value == allowed)


def _may(value: Mapping[str, Any], key: str, options: Any) -> bool:
    options = options if isinstance(options, list) else [options]
    if key not in value:
        return "" in options
    return any(_equal(value[key], one) for one in options)

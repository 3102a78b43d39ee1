"""Messages, tools and sampling settings in OpenAI's and GenAI's shapes as `flywheel.records`.

What enters are decoded JSON values; what leaves are Messages. null content stays distinct from ""
(no part, against one empty Text). Invariant: a key that no record field holds goes to `Rest`.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Message, Part, Reasoning, Refusal, Sampling, Text, ToolCall

from .parsed import Rest
from .parts import read_parts, tool_call, tool_result

_ROLES = {
    "system": "system", "developer": "developer", "user": "user", "assistant": "assistant",
    "tool": "tool", "function": "tool", "human": "user", "ai": "assistant", "gpt": "assistant",
    "model": "assistant", "AIMessageChunk": "assistant", "HumanMessageChunk": "user",
}  # fmt: skip
_PLAIN = frozenset(("system", "developer", "user", "assistant"))
_KNOWN = frozenset(
    (
        "role", "content", "parts", "name", "tool_calls", "tool_call_id", "function_call",
        "refusal", "reasoning", "reasoning_content", "finish_reason", "additional_kwargs",
    )
)  # fmt: skip
_THOUGHT = frozenset(("reasoning_content", "reasoning"))
_CALLED = frozenset(("tool_calls", "function_call", "additional_kwargs"))
_RESULTS = frozenset(("tool_result", "tool-result", "tool_call_response", "function_call_output"))
_CLASSES = {
    "HumanMessage": "user", "AIMessage": "assistant", "AIMessageChunk": "assistant",
    "SystemMessage": "system", "ToolMessage": "tool", "FunctionMessage": "tool",
}  # fmt: skip
"""LangChain's classes of messages."""
_ITEMS = frozenset(("function_call", "function_call_output", "reasoning"))
_CALL = frozenset(("id", "type", "function", "index", "name", "arguments", "args"))
_FUNCTION = frozenset(("name", "arguments"))


def read_messages(values: object, rest: Rest, path: str) -> tuple[Message, ...]:
    """A list of messages.

    Raises:
        BadRecord: it is not a list, or one of them is no message; names which.
    """
    if not isinstance(values, list):
        raise BadRecord(f"is {name_of(values)}, not a list of messages", field=path)
    messages: list[Message] = []
    for at, value in enumerate(values):
        if (plain := _plain(value, rest)) is not None:
            messages.append(plain)
        elif _answers_calls(value):
            messages += _by_result(value, rest, f"{path}[{at}]")
        else:
            messages.append(_read(value, rest, f"{path}[{at}]"))
    return tuple(messages)


def read_message(value: object, rest: Rest, path: str) -> Message:
    """One message in any of the shapes that OpenAI, GenAI, Anthropic, Google and LangChain use."""
    return _plain(value, rest) or _read(value, rest, path)


def _read(value: object, rest: Rest, path: str) -> Message:
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not a message", field=path)
    if "lc" in value and isinstance(value.get("kwargs"), dict):
        value = _constructed(value)
    kind = value.get("type")
    if "role" not in value and isinstance(kind, str) and kind in _ITEMS:
        role = "tool" if kind == "function_call_output" else "assistant"
        return Message(role=role, parts=tuple(read_parts(value, rest, path)))
    role = _role(value, path)
    rest.put_others(value, _KNOWN, path)
    name = value.get("name")
    parts: list[Part] = []
    for key in () if _THOUGHT.isdisjoint(value) else ("reasoning_content", "reasoning"):
        if isinstance(value.get(key), str):
            text, cut = rest.cut(value[key])
            parts.append(cut or Reasoning(text=text))
            break
    content = value.get("parts", value.get("content"))
    if role == "tool" and "parts" not in value:
        ids = value.get("tool_call_id", value.get("id"))
        parts.extend(tool_result(content, ids, name, rest, f"{path}.content"))
        name = None
    else:
        parts.extend(read_parts(content, rest, f"{path}.content"))
    if isinstance(value.get("refusal"), str):
        parts.append(Refusal(text=value["refusal"]))
    parts += _made(value, parts, rest, path)
    return Message(role=role, parts=tuple(parts), name=name if isinstance(name, str) else None)


def _made(value: dict[str, Any], said: list[Part], rest: Rest, path: str) -> list[Part]:
    """The calls beside a message's content, without those that stand in it too."""
    parts: list[Part] = []
    if _CALLED.isdisjoint(value):
        return parts
    made = value.get("tool_calls")
    extra = value.get("additional_kwargs")  # LangChain's place for what the provider wrote
    if not made and isinstance(extra, dict) and extra.get("tool_calls"):
        made = extra["tool_calls"]
        rest.put_others(extra, frozenset(("tool_calls",)), f"{path}.additional_kwargs")
    else:
        rest.put(f"{path}.additional_kwargs", extra)
    if made:
        there = {part.id for part in said if isinstance(part, ToolCall) and part.id}
        calls = _calls(made, rest, f"{path}.tool_calls")
        parts += [one for one in calls if not (isinstance(one, ToolCall) and one.id in there)]
    if isinstance(value.get("function_call"), dict):
        call = value["function_call"]
        parts.extend(tool_call(call.get("name"), call.get("arguments"), None, rest))
    return parts


def read_tools(values: object, rest: Rest, path: str) -> tuple[dict[str, Any], ...]:
    """Tool schemas, a bare function wrapped as OpenAI does, Anthropic's by OpenAI's names."""
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadRecord(f"is {name_of(values)}, not a list of tool schemas", field=path)
    return tuple([tool_schema(value) for value in values])


def read_sampling(asked: dict[str, Any], others: dict[str, Any]) -> Sampling:
    """`asked` by the names of Sampling; values of the wrong type join `others`."""
    other = dict(others)
    stop = asked.get("stop")
    if isinstance(stop, str):
        stop = [stop]
    if not (isinstance(stop, list) and all(isinstance(item, str) for item in stop)):
        if stop is not None:
            other["stop"] = stop
        stop = []
    numbers: dict[str, Any] = {}
    for name in ("temperature", "top_p", "top_k", "max_tokens", "seed"):
        value = asked.get(name)
        if value is None:
            continue
        whole = name in ("top_k", "max_tokens", "seed")
        if isinstance(value, float) and whole and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            other[name] = value
        elif abs(value) >= 1 << 63:
            other[name] = str(value)
        else:
            numbers[name] = value if whole else float(value)
    return Sampling(stop=tuple(stop), other=other, **numbers)


def name_of(value: object) -> str:
    """How a reason names a wrong type, in JSON's words."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number",
             str: "text", list: "a list", dict: "an object"}  # fmt: skip
    return names.get(type(value), type(value).__name__)


def answered(message: Message) -> bool:
    """Whether a message says anything, so that zero tokens cannot be its count."""
    return any(not isinstance(part, Text) or part.text for part in message.parts)


def _answers_calls(value: object) -> bool:
    """Whether a message holds tool results among its parts, as Anthropic's user messages do."""
    if not isinstance(value, dict):
        return False
    content = value.get("parts", value.get("content"))
    return isinstance(content, list) and any(_is_result(part) for part in content)


def _is_result(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    if isinstance(kind, str):
        return kind in _RESULTS
    return "function_response" in part or "functionResponse" in part


def _by_result(value: dict[str, Any], rest: Rest, path: str) -> list[Message]:
    """The message as OpenAI has it: each tool result is a message of the tool by itself."""
    key = "parts" if "parts" in value else "content"
    messages: list[Message] = []
    said: list[Any] = []

    def flush() -> None:
        if said:
            messages.append(read_message({**value, key: said[:]}, rest, path))
            said.clear()

    for at, part in enumerate(value[key]):
        if not _is_result(part):
            said.append(part)
            continue
        flush()
        parts = read_parts([part], rest, f"{path}.{key}[{at}]")
        messages.append(Message(role="tool", parts=tuple(parts)))
    flush()
    if all(one.role == "tool" for one in messages):
        rest.put_others(value, _KNOWN, path)
    return messages


def _constructed(value: dict[str, Any]) -> dict[str, Any]:
    """A message that LangChain wrote as a call of its class."""
    known: dict[str, Any] = value["kwargs"]
    names = value.get("id")
    name = names[-1] if isinstance(names, list) and names else None
    role = known.get("role") or _CLASSES.get(str(name)) or known.get("type")
    return {**{key: one for key, one in known.items() if key != "type"}, "role": role}


def _plain(value: object, rest: Rest) -> Message | None:
    """The commonest form, a role and a text, without looking for others."""
    if type(value) is dict and len(value) == 2 and not rest.big:
        role, content = value.get("role"), value.get("content")
        if type(content) is str and type(role) is str and role in _PLAIN:
            return Message(role=role, parts=(Text(text=content),))
    return None


def _role(value: dict[str, Any], path: str) -> str:
    role = value.get("role")
    if role is None:
        role = value.get("type")  # LangChain
    if not isinstance(role, str) or not role:
        raise BadRecord(f"is {name_of(role)}, not a role", field=f"{path}.role")
    return _ROLES.get(role, role)


def _calls(values: object, rest: Rest, path: str) -> list[Part]:
    if not isinstance(values, list):
        raise BadRecord(f"is {name_of(values)}, not a list of tool calls", field=path)
    parts: list[Part] = []
    for at, value in enumerate(values):
        if not isinstance(value, dict):
            raise BadRecord(f"is {name_of(value)}, not a tool call", field=f"{path}[{at}]")
        rest.put_others(value, _CALL, f"{path}[{at}]")
        function = value.get("function", value)
        if not isinstance(function, dict):
            raise BadRecord(f"is {name_of(function)}", field=f"{path}[{at}].function")
        if function is not value:
            rest.put_others(function, _FUNCTION, f"{path}[{at}].function")
        arguments = function.get("arguments", function.get("args"))
        parts.extend(tool_call(function.get("name"), arguments, value.get("id"), rest))
    return parts


def tool_schema(value: dict[str, Any]) -> dict[str, Any]:
    """One, as OpenAI writes it."""
    if "function" in value or "name" not in value:
        return value
    if "input_schema" not in value and value.get("type") not in (None, "function", "custom"):
        return value  # a tool that the provider itself runs
    function = {key: item for key, item in value.items() if key != "type"}
    if "input_schema" in function:
        function["parameters"] = function.pop("input_schema")
    return {"type": "function", "function": function}

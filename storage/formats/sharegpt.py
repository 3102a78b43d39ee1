"""ShareGPT rows: {conversations: [{from, value}], system?, tools?}.

`function_call` turns hold the call as JSON text, `observation` turns its result. Rows with
`chosen` and `rejected` are preference pairs, not conversations, and are not taken for these.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Message, Part, Unknown

from .chat_rows import row_tools
from .messages import name_of
from .nested import nested
from .parsed import Context, Parsed, Rest
from .parts import read_parts, tool_call, tool_result
from .turns import conversation_trace

SOURCE = "import:sharegpt"

_ROW = frozenset(("conversations", "system", "tools"))
_TURN = frozenset(("from", "value"))
_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "model": "assistant",
    "system": "system", "function_call": "assistant", "tool_call": "assistant",
    "observation": "tool", "tool": "tool", "function_response": "tool", "tool_response": "tool",
}  # fmt: skip
_CALLS = ("function_call", "tool_call")


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict) or "chosen" in sample:
        return False
    turns = sample.get("conversations")
    return isinstance(turns, list) and (
        not turns or (isinstance(turns[0], dict) and "from" in turns[0])
    )


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    turns = row.get("conversations")
    if not isinstance(turns, list) or not turns:
        raise BadRecord("is empty: a conversation needs a turn", field="conversations")
    messages = list(read_turns(turns, rest, "conversations"))
    system = row.get("system")
    if isinstance(system, str) and system:
        messages.insert(0, Message(role="system", parts=(rest.text(system),)))
    else:
        rest.put("system", system)
    tools = row_tools(row.get("tools"), rest)
    rest.put_others(row, _ROW, "")
    trace = conversation_trace(tuple(messages), tools, SOURCE, rest.take(), context)
    return Parsed([trace], [], rest.counts)


def read_turns(turns: list[Any], rest: Rest, path: str) -> tuple[Message, ...]:
    """
    Raises:
        BadRecord: one of them is no turn; names which.
    """
    return tuple([_turn(turn, rest, f"{path}[{at}]") for at, turn in enumerate(turns)])


def _turn(turn: object, rest: Rest, path: str) -> Message:
    if not isinstance(turn, dict):
        raise BadRecord(f"is {name_of(turn)}, not a turn", field=path)
    said, value = turn.get("from"), turn.get("value")
    if not isinstance(said, str) or not said:
        raise BadRecord(f"is {name_of(said)}, not a speaker", field=f"{path}.from")
    rest.put_others(turn, _TURN, path)
    role = _ROLES.get(said, said)
    parts: list[Part]
    if said in _CALLS:
        parts = _calls(value, rest)
    elif role == "tool":
        parts = tool_result(value, None, None, rest, f"{path}.value")
    else:
        parts = read_parts(value, rest, f"{path}.value")
    return Message(role=role, parts=tuple(parts))


def _calls(value: object, rest: Rest) -> list[Part]:
    """One call or a list of them, as JSON text; text that is no call is kept as it came."""
    calls = nested(value)
    parts: list[Part] = []
    for call in calls if isinstance(calls, list) else [calls]:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return [Unknown(kind="function_call", raw=rest.bounded(value))]
        arguments = call.get("arguments", call.get("parameters"))
        parts.extend(tool_call(call["name"], arguments, call.get("id"), rest))
    return parts

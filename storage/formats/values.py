"""A call's input and output as platforms keep them: whatever each framework handed over.

What enters is the decoded value; what leaves are messages, tools and choices. Known are OpenAI's
two APIs, GenAI messages and events, Anthropic's and Google's content, LangChain's and the Vercel
SDK's forms, and plain text. Invariant: what is none of them is kept whole, as an Unknown part.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Choice, Message, Unknown, say

from .finish import finish_reason
from .messages import read_message, read_messages, read_tools
from .nested import nested
from .openai_chat import read_response
from .parsed import Rest
from .parts import read_parts

_Tools = tuple[dict[str, Any], ...] | None


def decoded(value: Any) -> Any:
    """JSON text as its value, also where it was encoded twice; other text as it is."""
    for _ in range(3):
        if not isinstance(value, str) or value[:1] not in ("{", "[", '"'):
            return value
        value = nested(value)
    return value


def read_input(value: Any, rest: Rest) -> tuple[tuple[Message, ...], _Tools]:
    if value is None:
        return (), None
    if isinstance(value, str):
        return _kept("user", value, rest)
    try:
        return _input(value, rest)
    except BadRecord:
        pass
    offered = value.get("tools") if isinstance(value, dict) else None
    if isinstance(offered, list) and all(isinstance(one, dict) for one in offered):
        others = {key: one for key, one in value.items() if key != "tools"}
        return _kept("user", others, rest)[0], read_tools(offered, rest, "input.tools")
    return _kept("user", value, rest)


def read_output(value: Any, rest: Rest) -> tuple[Choice, ...]:
    if value is None:
        return ()
    try:
        found = _output(value, rest)
    except BadRecord:
        found = None
    if found is None:
        return (Choice(message=_kept("assistant", value, rest)[0][0]),)
    return found


def _kept(role: str, value: Any, rest: Rest) -> tuple[tuple[Message, ...], _Tools]:
    if isinstance(value, str):
        return (Message(role=role, parts=(rest.text(value),)),), None
    part = Unknown(kind="value", raw=rest.bounded(value))
    return (Message(role=role, parts=(part,)),), None


def _input(value: Any, rest: Rest) -> tuple[tuple[Message, ...], _Tools]:
    if isinstance(value, list):
        tools = [item["content"] for item in value if _is_tool(item)]
        said = [item for item in value if not _is_tool(item)]
        messages = read_messages(said, rest, "input")
        return messages, read_tools(tools, rest, "input.tools") if tools else None
    if not isinstance(value, dict):
        raise BadRecord("is no message")
    if isinstance(value.get("messages"), list):
        messages = read_messages(value["messages"], rest, "input.messages")
        offered = value.get("tools")
        rest.put_others(value, frozenset(("messages", "tools")), "input")
        return messages, None if offered is None else read_tools(offered, rest, "input.tools")
    if "contents" in value:
        return _google(value, rest)
    if isinstance(value.get("prompt"), str) and not value.keys() - {"prompt", "system"}:
        system = (say("system", value["system"]),) if value.get("system") else ()
        return (*system, say("user", value["prompt"])), None
    if "role" in value:
        return (read_message(value, rest, "input"),), None
    raise BadRecord("is no message")


def _is_tool(item: Any) -> bool:
    """LangChain puts the tools it offers among the messages."""
    if not isinstance(item, dict) or not isinstance(item.get("content"), dict):
        return False
    content = item["content"]
    return item.get("role") == "tool" and content.get("type") == "function"


def _google(value: dict[str, Any], rest: Rest) -> tuple[tuple[Message, ...], _Tools]:
    contents = value["contents"]
    if isinstance(contents, str):
        messages: tuple[Message, ...] = (say("user", contents),)
    else:
        messages = read_messages(contents, rest, "input.contents")
    config = value.get("config")
    config = config if isinstance(config, dict) else {}
    told = config.get("system_instruction", value.get("system_instruction"))
    if isinstance(told, str):
        messages = (say("system", told), *messages)
    tools: list[dict[str, Any]] = []
    for group in config.get("tools", value.get("tools")) or ():
        declared = group.get("function_declarations") if isinstance(group, dict) else None
        tools.extend(item for item in declared or () if isinstance(item, dict))
    known = frozenset(("contents", "config", "system_instruction", "tools", "model"))
    rest.put_others(value, known, "input")
    rest.put_others(config, frozenset(("system_instruction", "tools")), "input.config")
    return messages, read_tools(tools, rest, "input.tools") if tools else None


def _output(value: Any, rest: Rest) -> tuple[Choice, ...] | None:
    if isinstance(value, str):
        return (Choice(message=Message(role="assistant", parts=(rest.text(value),))),)
    if isinstance(value, list):
        return _output_list(value, rest)
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("choices"), list):
        response = {key: item for key, item in value.items() if key != "usage"}
        return read_response(response, rest, "output")[0]
    if isinstance(value.get("candidates"), list):
        rest.put_others(value, frozenset(("candidates",)), "output")
        return tuple(_candidate(item, rest) for item in value["candidates"])
    if isinstance(value.get("message"), dict):
        message = {"role": "assistant", **value["message"]}
        rest.put_others(value, frozenset(("message", "finish_reason", "index")), "output")
        return (_choice(message, value, rest),)
    if isinstance(value.get("output"), list) and value.get("object") == "response":
        rest.put_others(value, frozenset(("output", "object", "tools")), "output")
        return (Choice(message=_joined(value["output"], rest)),)
    if isinstance(value.get("content"), dict) and "parts" in value["content"]:
        return (_candidate(value, rest),)
    if "role" in value or "content" in value or value.get("type") in ("ai", "assistant"):
        return (_choice({"role": "assistant", **value}, value, rest),)
    return None


def _output_list(value: list[Any], rest: Rest) -> tuple[Choice, ...] | None:
    if not value or not all(isinstance(item, dict) for item in value):
        return None
    if all("toolCallId" in item for item in value):
        parts = read_parts([{"type": "tool-call", **item} for item in value], rest, "output")
        return (Choice(message=Message(role="assistant", parts=tuple(parts))),)
    if len(value) == 1 and ("role" in value[0] or "parts" in value[0]):
        return (_choice(value[0], value[0], rest),)
    if all("type" in item and "role" not in item for item in value):
        return (Choice(message=_joined(value, rest)),)
    if all(item.get("role") == "assistant" for item in value):
        return tuple(_choice(item, item, rest) for item in value)
    return None  # a whole dialogue is no answer of one call


def _joined(items: list[Any], rest: Rest) -> Message:
    """Output items of one answer (reasoning, text, calls) as one message."""
    parts = []
    for at, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "message":
            parts.extend(read_parts(item.get("content"), rest, f"output[{at}].content"))
        else:
            parts.extend(read_parts(item, rest, f"output[{at}]"))
    return Message(role="assistant", parts=tuple(parts))


def _choice(message: dict[str, Any], holder: dict[str, Any], rest: Rest) -> Choice:
    finish = holder.get("finish_reason", holder.get("stop_reason"))
    about = message.get("response_metadata")
    if finish is None and isinstance(about, dict):
        finish = about.get("finish_reason", about.get("stop_reason"))
    said = read_message(message, rest, "output")
    return Choice(message=said, finish_reason=finish_reason(finish))


def _candidate(value: Any, rest: Rest) -> Choice:
    """One of Google's answers."""
    if not isinstance(value, dict) or not isinstance(value.get("content"), dict):
        raise BadRecord("is no candidate")
    rest.put_others(value, frozenset(("content", "finish_reason", "index")), "output")
    finish = value.get("finish_reason")
    if finish is not None and not isinstance(finish, str):
        rest.put("output.finish_reason", finish)
    message = read_message({"role": "model", **value["content"]}, rest, "output")
    return Choice(message=message, finish_reason=finish_reason(finish))

"""A chat completion request as one of Anthropic's Messages.

Enters a checked request; leave the fields of the other protocol and the names of what it has no
word for. System messages move to `system`, tool results into the user's turn, turns of one side are
joined. Invariant: a request that would be answered in another form than asked for is refused.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from serving.chat import Chat
from serving.refusal import ApiError, invalid

Block = dict[str, Any]

_SAME = ("temperature", "top_p", "top_k", "stream", "thinking", "service_tier")
"""Fields that both protocols have under one name."""
_TURNED = {
    *_SAME, "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "max_tokens",
    "max_completion_tokens", "stop", "user", "metadata", "response_format", "n", "logprobs",
    "top_logprobs", "stream_options", "return_token_ids",
}  # fmt: skip


def request_of(chat: Chat) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields without `model`, and what was left out.

    Raises:
        ApiError: 400: Anthropic cannot give what is asked for.
    """
    given = {name: msgspec.json.decode(raw) for name, raw in chat.fields.items()}
    given = {name: value for name, value in given.items() if value is not None}
    _must_be_possible(given)
    system, messages = _messages(chat.request.messages)
    fields: dict[str, Any] = {"max_tokens": chat.longest, "messages": messages}
    if system:
        fields["system"] = system
    fields |= {name: given[name] for name in _SAME if name in given}
    if "stop" in given:
        stop = given["stop"]
        fields["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if chat.request.user is not None:
        fields["metadata"] = {"user_id": chat.request.user}
    if chat.request.tools:
        fields["tools"] = [_tool(tool, place) for place, tool in enumerate(chat.request.tools)]
        if choice := _tool_choice(given.get("tool_choice"), given.get("parallel_tool_calls")):
            fields["tool_choice"] = choice
    if schema := _schema(given.get("response_format")):
        fields["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return fields, tuple(sorted(set(given) - _TURNED))


def _must_be_possible(given: dict[str, Any]) -> None:
    if given.get("n", 1) != 1:
        raise _impossible("n", "gives one answer a request")
    if given.get("logprobs"):
        raise _impossible("logprobs", "gives no log-probabilities")
    form = given.get("response_format")
    kind = form.get("type") if isinstance(form, dict) else None
    if form is not None and kind not in ("text", "json_schema"):
        raise _impossible("response_format", f"has no {kind}: use json_schema")


def _impossible(field: str, why: str) -> ApiError:
    return invalid(f"a provider's model answers, and its protocol {why}", field)


def _messages(messages: list[dict[str, Any]]) -> tuple[list[Block], list[dict[str, Any]]]:
    """What `system` holds, and the turns."""
    system: list[Block] = []
    turns: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        role, where = message.get("role"), f"messages[{place}]"
        if role in ("system", "developer"):
            system += _content(message.get("content"), where)
            continue
        side = "assistant" if role == "assistant" else "user"
        blocks = list(_blocks(message, role, where))
        if turns and turns[-1]["role"] == side:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": side, "content": blocks})
    return system, turns


def _blocks(message: dict[str, Any], role: Any, where: str) -> Iterator[Block]:
    if role in ("tool", "function"):
        content = list(_content(message.get("content"), where))
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id")}
        yield {**result, **({"content": content} if content else {})}
        return
    if role == "assistant":
        # Signed thoughts must come back as they were; unsigned ones would be refused.
        thoughts = message.get("thinking_blocks")
        yield from (block for block in thoughts or () if isinstance(block, dict))
    yield from _content(message.get("content"), where)
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        yield {"type": "text", "text": refusal}
    for call in message.get("tool_calls") or ():
        yield _call(call, where)


def _content(content: Any, where: str) -> Iterator[Block]:
    """Empty texts are refused there, and say nothing."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list | None):
        raise invalid("must be a string, an array or null", f"{where}.content")
    for part in content or ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            kept = {"cache_control": mark} if (mark := part.get("cache_control")) else {}
            if part["text"]:
                yield {"type": "text", "text": part["text"], **kept}
        elif kind == "refusal":
            yield {"type": "text", "text": str(part.get("refusal"))}
        elif kind == "image_url":
            yield _image(part["image_url"], where)
        elif kind == "file":
            yield _file(part.get("file"), where)
        else:
            raise _impossible(f"{where}.content", f"has no part of the type {kind!r}")


def _image(image: Any, where: str) -> Block:
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str):
        raise invalid("must have a url", f"{where}.content.image_url")
    return {"type": "image", "source": _source(url)}


def _file(file: Any, where: str) -> Block:
    data = file.get("file_data") if isinstance(file, dict) else None
    if not isinstance(data, str) or not data.startswith("data:"):
        raise _impossible(f"{where}.content.file", "takes files as data URLs alone")
    title = {"title": name} if isinstance(name := file.get("filename"), str) else {}
    return {"type": "document", "source": _source(data), **title}


def _source(url: str) -> Block:
    head, comma, data = url.partition(",")
    if url.startswith("data:") and comma and ";base64" in head:
        kind = head[5:].split(";")[0]
        return {"type": "base64", "media_type": kind, "data": data}
    return {"type": "url", "url": url}


def _call(call: Any, where: str) -> Block:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise invalid("must be a function call", f"{where}.tool_calls")
    arguments = function.get("arguments") or "{}"
    try:
        given = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except msgspec.DecodeError:
        # What a model said is its history, also where it is no JSON.
        given = {"arguments": arguments}
    name, call_id = function.get("name"), call.get("id")
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def _tool(tool: dict[str, Any], place: int) -> Block:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise _impossible(f"tools[{place}]", "takes functions alone")
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    turned = {"name": function.get("name"), "input_schema": schema}
    more = {name: function[name] for name in ("description", "strict") if name in function}
    return {**turned, **{name: value for name, value in more.items() if value is not None}}


def _tool_choice(choice: Any, parallel: Any) -> Block:
    names = {"auto": "auto", "none": "none", "required": "any"}
    turned: Block = {}
    if isinstance(choice, str) and choice in names:
        turned = {"type": names[choice]}
    elif isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        turned = {"type": "tool", "name": choice["function"].get("name")}
    elif choice is not None:
        raise invalid(f"{choice!r} is no tool choice", "tool_choice")
    if parallel is False and turned.get("type") != "none":
        turned = {"type": "auto", **turned, "disable_parallel_tool_use": True}
    return turned


def _schema(form: Any) -> Any:
    named = form.get("json_schema") if isinstance(form, dict) else None
    return named.get("schema") if isinstance(named, dict) else None

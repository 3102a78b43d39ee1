"""A request of Anthropic's Messages in the chat form.

Enters a client's body; leaves a checked `Chat`, with the client's own words beside it (`native`)
for a provider that speaks Messages too. Tool results become messages of their own, thoughts
`reasoning_content`. What only Anthropic has a word for stays in those own words.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from serving.chat import Chat, Native, Positive
from serving.dialects.parts import Fields, joined
from serving.limits import Limits, decode
from serving.refusal import ApiError, invalid

_TURNED = {
    "system", "messages", "stop_sequences", "tools", "tool_choice", "metadata", "output_config",
    "output_format", "stream",
}  # fmt: skip
_FOREIGN = {
    "thinking", "service_tier", "container", "inference_geo", "speed", "cache_control",
    "diagnostics", "context_management", "mcp_servers", "user_profile_id", "workspace_id", "betas",
}  # fmt: skip
"""Fields that no other protocol has: only `native` has them."""
_THOUGHTS = ("thinking", "redacted_thinking")
_EFFORTS = ("low", "medium", "high")
_NAMES = {"stop": "stop_sequences", "user": "metadata.user_id"}


class MessagesRequest(Struct, frozen=True):
    """The fields that are turned, of the types that Anthropic gives them."""

    model: str
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_tokens: Positive
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    stream: bool | None = None


_typed = msgspec.json.Decoder(MessagesRequest)
_fields = msgspec.json.Decoder(dict[str, Raw])


def chat_of(body: bytes, limits: Limits, **fixed: Any) -> Chat:
    """
    Args:
        fixed: fields that are what they are here, whatever the client wrote.

    Raises:
        ApiError: 400: it is no such request.
    """
    if fixed:
        given = decode(body, _fields, limits.depth)
        body = msgspec.json.encode({**given, **fixed})
    asked = decode(body, _typed, limits.depth)
    fields = _fields.decode(body)
    try:
        chat = Chat(msgspec.json.encode(_chat(asked, fields)), limits)
    except ApiError as error:
        error.param = _NAMES.get(error.param or "", error.param)
        raise
    if chat.choices != 1:
        raise invalid("n: one answer a request", "n")
    chat.turned = True
    chat.native = Native("anthropic", fields)
    return chat


def _chat(asked: MessagesRequest, fields: dict[str, Raw]) -> Fields:
    chat: Fields = {name: raw for name, raw in fields.items() if name not in _TURNED | _FOREIGN}
    chat["messages"] = list(_messages(asked))
    if asked.messages[-1].get("role") == "assistant":
        # The answer goes on with these words.
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    if asked.stop_sequences:
        chat["stop"] = asked.stop_sequences
    if asked.tools:
        chat["tools"] = [_tool(tool) for tool in asked.tools]
        if asked.tool_choice:
            chat |= _tool_choice(asked.tool_choice)
    if asked.metadata:
        user = asked.metadata.get("user_id")
        more = {name: value for name, value in asked.metadata.items() if name != "user_id"}
        chat |= {**({"user": user} if user else {}), **({"metadata": more} if more else {})}
    config = asked.output_config or {}
    form = config.get("format") or asked.output_format
    if isinstance(form, dict) and form.get("type") == "json_schema":
        named = {"name": "answer", "schema": form.get("schema"), "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": named}
    if config.get("effort") in _EFFORTS:
        chat["reasoning_effort"] = config["effort"]
    if asked.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _messages(asked: MessagesRequest) -> Iterator[Fields]:
    if asked.system:
        yield {"role": "system", "content": joined(_parts(asked.system, "system"))}
    for place, message in enumerate(asked.messages):
        role, where = message.get("role"), f"messages[{place}]"
        content = message.get("content")
        if role == "assistant":
            yield _said(content, where)
        elif role in ("user", "system"):
            yield from _turn(role, content, where)
        else:
            raise invalid(f"{where}.role must be user, assistant or system", f"{where}.role")


def _turn(role: str, content: Any, where: str) -> Iterator[Fields]:
    """A user's turn: the results of the calls before it first, each a message of its own."""
    blocks = _blocks(content, where)
    results = [block for block in blocks if block.get("type") == "tool_result"]
    for block in results:
        result = {"role": "tool", "tool_call_id": block.get("tool_use_id")}
        result["content"] = joined(_parts(block.get("content") or "", f"{where}.content"))
        yield {**result, **({"is_error": True} if block.get("is_error") else {})}
    others = [block for block in blocks if block.get("type") != "tool_result"]
    if others or not results:
        yield {"role": role, "content": joined(_parts(others, where))}


def _said(content: Any, where: str) -> Fields:
    blocks = _blocks(content, where)
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    thoughts = [block for block in blocks if block.get("type") in _THOUGHTS]
    others = [block for block in blocks if block.get("type") not in ("tool_use", *_THOUGHTS)]
    message: Fields = {"role": "assistant", "content": joined(_parts(others, where)) or None}
    if thought := "".join(str(block.get("thinking", "")) for block in thoughts):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [_call(block) for block in calls]
    return message


def _call(block: Fields) -> Fields:
    arguments = msgspec.json.encode(block.get("input") or {}).decode()
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _blocks(content: Any, where: str) -> list[Fields]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        text = f"{where}.content must be a string or an array of blocks"
        raise invalid(text, f"{where}.content")
    return content


def _parts(content: Any, where: str) -> list[Fields]:
    return [part for block in _blocks(content, where) for part in _part(block)]


def _part(block: Fields) -> Iterator[Fields]:
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        yield {"type": "text", "text": block.get("text", "")}
    elif kind == "image" and isinstance(source, dict) and (url := _url(source)):
        yield {"type": "image_url", "image_url": {"url": url}}
    elif kind == "document" and isinstance(source, dict):
        yield from _document(block, source)
    else:
        yield block


def _document(block: Fields, source: Fields) -> Iterator[Fields]:
    title = {"filename": name} if isinstance(name := block.get("title"), str) else {}
    if source.get("type") == "text":
        yield {"type": "text", "text": source.get("data", "")}
    elif source.get("type") == "content":
        yield from _parts(source.get("content"), "source")
    elif source.get("type") == "file":
        yield {"type": "file", "file": {"file_id": source.get("file_id"), **title}}
    elif source.get("type") == "base64":
        yield {"type": "file", "file": {"file_data": _url(source), **title}}
    else:
        yield block


def _url(source: Fields) -> str | None:
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return source.get("url") if source.get("type") == "url" else None


def _tool(tool: Fields) -> Fields:
    """A tool that Anthropic runs itself stays as it is: an engine says that it has none."""
    if "input_schema" not in tool:
        return tool
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    more = {name: tool[name] for name in ("description", "strict") if name in tool}
    return {"type": "function", "function": {**function, **more}}


def _tool_choice(choice: Fields) -> Fields:
    names = {"auto": "auto", "any": "required", "none": "none"}
    kind = choice.get("type")
    if kind == "tool":
        turned: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in names:
        turned = names[kind]
    else:
        raise invalid(f"tool_choice.type: {kind!r} is none", "tool_choice.type")
    single = bool(choice.get("disable_parallel_tool_use"))
    return {"tool_choice": turned, **({"parallel_tool_calls": False} if single else {})}

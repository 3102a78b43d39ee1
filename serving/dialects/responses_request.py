"""A request of OpenAI's Responses in the chat form.

Enters a client's body and what an earlier response of its left; leaves a checked `Chat` that knows
its conversation. What only OpenAI's own servers can do (tools that they run, items that they keep)
is refused in words.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from serving.chat import Chat, Positive
from serving.dialects.parts import Fields
from serving.dialects.responses_items import messages_of
from serving.limits import Limits, decode
from serving.refusal import ApiError, invalid

_TURNED = {
    "input", "instructions", "tools", "tool_choice", "text", "max_output_tokens", "reasoning",
    "include", "top_logprobs", "stream", "previous_response_id", "store", "background",
    "conversation", "prompt", "truncation", "max_tool_calls", "stream_options",
}  # fmt: skip
_NAMES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
}
_NOT_HERE = {
    "background": "an answer is given as it comes: send it without `background`",
    "conversation": "conversations are not kept as objects here: send the items, or "
    "previous_response_id",
    "prompt": "prompt templates are not kept here: send instructions and input",
}
_LOGPROBS = "message.output_text.logprobs"


class Earlier(Struct):
    """What a response left for the one that goes on from it."""

    messages: list[Fields]
    """In the chat form, its answer included; without instructions, which are each request's own."""
    conversation: str
    """Of its trace."""
    project: str


Recall = Callable[[str], Earlier]


class ResponsesRequest(Struct, frozen=True):
    """The fields that are turned, of the types that OpenAI gives them."""

    model: str
    input: str | list[Fields] = []
    instructions: str | None = None
    tools: list[Fields] | None = None
    tool_choice: str | Fields | None = None
    text: Fields | None = None
    max_output_tokens: Positive | None = None
    reasoning: Fields | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    n: Any = None


_typed = msgspec.json.Decoder(ResponsesRequest)
_fields = msgspec.json.Decoder(dict[str, Raw])


class ResponsesChat(Chat):
    """The chat, and what of the request its answer must say again."""

    turned = True

    def __init__(
        self,
        body: bytes,
        limits: Limits,
        asked: ResponsesRequest,
        given: dict[str, Raw],
        earlier: Earlier | None,
    ) -> None:
        self.asked, self.given, self.earlier = asked, given, earlier
        super().__init__(body, limits)
        if earlier is not None and asked.previous_response_id is not None:
            self.after = (earlier.project, asked.previous_response_id)

    def conversation(self, header: str | None) -> str | None:
        named = super().conversation(header)
        return named or (self.earlier.conversation if self.earlier else None)

    @property
    def said(self) -> list[Fields]:
        """The conversation without its instructions."""
        messages = self.request.messages
        return messages[1:] if self.asked.instructions is not None else messages


def chat_of(body: bytes, limits: Limits, recall: Recall) -> ResponsesChat:
    """
    Raises:
        ApiError: 400: it is no such request, or asks for what is not done here.
    """
    asked = decode(body, _typed, limits.depth)
    given = _fields.decode(body)
    for name, why in _NOT_HERE.items():
        if given.get(name, b"null") not in (b"null", b"false"):
            raise invalid(f"{name}: {why}", name)
    if asked.n not in (None, 1):
        raise invalid("n: one response a request", "n")
    earlier = recall(asked.previous_response_id) if asked.previous_response_id else None
    chat = msgspec.json.encode(_chat(asked, given, earlier))
    try:
        return ResponsesChat(chat, limits, asked, given, earlier)
    except ApiError as error:
        where, _, rest = (error.param or "").partition("[")
        if where in _NAMES:
            error.message = error.message.replace(where, _NAMES[where], 1)
            error.param = _NAMES[where] + (f"[{rest}" if rest else "")
        raise


def _chat(asked: ResponsesRequest, given: dict[str, Raw], earlier: Earlier | None) -> Fields:
    chat: Fields = {name: raw for name, raw in given.items() if name not in _TURNED}
    items = asked.input
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    messages = list(messages_of(items))
    told = asked.instructions
    instructions = [] if told is None else [{"role": "system", "content": told}]
    chat["messages"] = [*instructions, *(earlier.messages if earlier else ()), *messages]
    if not messages:
        raise invalid("input is empty", "input")
    if asked.tools:
        chat["tools"] = [_tool(tool, place) for place, tool in enumerate(asked.tools)]
        if asked.tool_choice is not None:
            chat["tool_choice"] = _tool_choice(asked.tool_choice)
    if asked.max_output_tokens is not None:
        chat["max_tokens"] = asked.max_output_tokens
    if _LOGPROBS in (asked.include or ()) or asked.top_logprobs:
        chat |= {"logprobs": True, "top_logprobs": asked.top_logprobs or 0}
    if effort := (asked.reasoning or {}).get("effort"):
        chat["reasoning_effort"] = effort
    if form := (asked.text or {}).get("format"):
        chat |= _format(form)
    if verbosity := (asked.text or {}).get("verbosity"):
        chat["verbosity"] = verbosity
    if asked.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _tool(tool: Fields, place: int) -> Fields:
    if tool.get("type") != "function":
        raise invalid(
            f"tools[{place}]: {tool.get('type')!r} is a tool that OpenAI runs: here tools are "
            "functions, run by whoever asks",
            f"tools[{place}].type",
        )
    function = {name: tool[name] for name in tool if name != "type" and tool[name] is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: str | Fields) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    raise invalid("tool_choice: name a function, or auto, none or required", "tool_choice")


def _format(form: Any) -> Fields:
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "json_schema":
        schema = {name: form[name] for name in form if name != "type" and form[name] is not None}
        return {"response_format": {"type": kind, "json_schema": schema}}
    if kind == "json_object":
        return {"response_format": form}
    if kind not in (None, "text"):
        raise invalid(f"text.format.type: {kind!r} is none", "text.format.type")
    return {}

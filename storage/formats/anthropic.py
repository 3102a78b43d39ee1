"""Anthropic's messages API: one row a request with its message, plain, streamed or failed.

A row is {request, response} and what its logger knew (see `logged`); a bare message is one too.
Messages get the shape that OpenAI's chat has: the system prompt is the first, each tool result a
tool message of its own. Invariant: blocks of tools that the provider runs are kept whole, as
Unknown parts.
"""

from typing import Any

from flywheel.records import Choice, Message, ModelCall, Sampling

from .anthropic_stream import merge_events
from .finish import finish_reason
from .logged import Heard, identifier, logged, response_of
from .messages import answered, read_messages, read_sampling, read_tools
from .parsed import Context, Parsed, Rest
from .parts import read_parts
from .usage import read_usage
from .wire import api_of

SOURCE = "import:anthropic"

_ASKED = frozenset(
    (
        "model", "messages", "system", "tools", "temperature", "top_p", "top_k", "max_tokens",
        "stop_sequences", "metadata",
    )
)  # fmt: skip
_RESPONSE = frozenset(("id", "type", "role", "model", "content", "stop_reason", "usage", "error"))


def recognise(sample: object) -> bool:
    return api_of(sample) == "anthropic"


def read(row: dict[str, Any], context: Context) -> Parsed:
    if "request" not in row:
        row = {"response": row}
    rest = context.rest()
    request = row.get("request")
    response = _response(row.get("response"))
    call = _call(row, request if isinstance(request, dict) else None, response, rest)
    about = request.get("metadata") if isinstance(request, dict) else None
    heard = Heard(
        call,
        _error(response, call),
        answer=identifier(response.get("id")),
        user=identifier(about.get("user_id")) if isinstance(about, dict) else None,
    )
    if isinstance(about, dict):
        rest.put_others(about, frozenset(("user_id",)), "request.metadata")
    return logged(row, heard, rest, context, SOURCE)


def read_dialogue(system: object, values: object, rest: Rest, path: str) -> tuple[Message, ...]:
    """The messages of a request.

    Raises:
        BadRecord: `values` is no list of messages; names what is wrong.
    """
    messages: tuple[Message, ...] = ()
    if system:
        parts = read_parts(system, rest, "system")
        messages = (Message(role="system", parts=tuple(parts)),)
    return (*messages, *read_messages(values, rest, path))


def read_message(
    value: dict[str, Any], rest: Rest, path: str
) -> tuple[tuple[Choice, ...], dict[str, Any]]:
    """The answer of a message object; with it, what of the object is not part of the answer."""
    content = value.get("content")
    others = {key: value[key] for key in value.keys() - _RESPONSE}
    if content is None or (content == [] and value.get("stop_reason") is None):
        return (), others
    message = Message(role="assistant", parts=tuple(read_parts(content, rest, f"{path}.content")))
    said = value.get("stop_reason")
    if said is not None and finish_reason(said) != said:
        others["stop_reason"] = said
    return (Choice(message=message, finish_reason=finish_reason(said)),), others


def _call(
    row: dict[str, Any], request: dict[str, Any] | None, response: dict[str, Any], rest: Rest
) -> ModelCall:
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] | None = None
    sampling = Sampling()
    if request is not None:
        messages = read_dialogue(
            request.get("system"), request.get("messages"), rest, "request.messages"
        )
        tools = read_tools(request.get("tools"), rest, "request.tools")
        others = {key: request[key] for key in request.keys() - _ASKED}
        sampling = read_sampling({**request, "stop": request.get("stop_sequences")}, others)
    choices, others = read_message(response, rest, "response")
    for key, value in others.items():
        rest.put(f"response.{key}", value)
    if isinstance(response.get("error"), dict):
        rest.put_others(response["error"], frozenset(("message",)), "response.error")
    said = any(answered(one.message) for one in choices)
    return ModelCall(
        input=messages,
        choices=choices,
        tools=tools,
        model=identifier((request or row).get("model")) or identifier(row.get("model")),
        response_model=identifier(response.get("model")),
        sampling=sampling,
        usage=read_usage(response.get("usage"), said, rest, "response.usage"),
    )


def _error(response: dict[str, Any], call: ModelCall) -> str | None:
    error = response.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error.get("type") or error)
    if error:
        return str(error)
    if not call.choices:
        return "the response holds no content"
    return None if call.choices[0].finish_reason else "the stream breaks off before its end"


def _response(value: object) -> dict[str, Any]:
    return response_of(value, merge_events, lambda said: said.get("type") == "message_start")

"""OpenAI's Responses API: one row a request with its response, plain, streamed, polled or failed.

A row is {request, response} and what its logger knew (see `logged`); a bare response is one too.
History that the provider keeps (previous_response_id, a conversation) is not in the row: an Unknown
part stands for it. A background response is told by several rows: they are parts of one span.
"""

from typing import Any

from flywheel.records import Choice, Message, ModelCall, Sampling, ToolCall, Unknown, Usage

from .finish import finish_reason
from .logged import Heard, identifier, logged, response_of
from .messages import answered, read_sampling, read_tools
from .parsed import Context, Parsed, Rest
from .responses_items import read_items
from .responses_stream import merge_events
from .usage import read_usage
from .wire import api_of

SOURCE = "import:openai_responses"

_ASKED = frozenset(
    (
        "model", "input", "instructions", "tools", "temperature", "top_p", "max_output_tokens",
        "previous_response_id", "conversation", "user",
    )
)  # fmt: skip
_RESPONSE = frozenset(
    (
        "id", "object", "model", "output", "usage", "error", "created_at", "completed_at",
        "instructions", "tools", "temperature", "top_p", "max_output_tokens", "conversation",
        "previous_response_id", "user", "incomplete_details", "output_text",
    )
)  # fmt: skip
_UNFINISHED = {"queued": 0, "in_progress": 1}
_ANSWER = ("call.choices", "call.usage", "call.response_model", "end", "error")
_QUESTION = ("call.input", "call.model", "call.sampling", "call.tools", "kind", "name", "start")


def recognise(sample: object) -> bool:
    return api_of(sample) == "responses"


def read(row: dict[str, Any], context: Context) -> Parsed:
    if "request" not in row:
        row = {"response": row}
    rest = context.rest()
    request = row.get("request")
    request = request if isinstance(request, dict) else {}
    response = _response(row.get("response"))
    heard = _heard(row, request, response, rest)
    return logged(row, heard, rest, context, SOURCE)


def read_output(value: dict[str, Any], rest: Rest, path: str) -> tuple[tuple[Choice, ...], Usage]:
    """The choice and the usage of a response object."""
    choices = _choices(value, rest, path)
    said = any(answered(one.message) for one in choices)
    usage = read_usage(value.get("usage"), said, rest, f"{path}.usage")
    rest.put_others(value, _RESPONSE | {"status"}, path)
    return choices, usage


def _heard(
    row: dict[str, Any], request: dict[str, Any], response: dict[str, Any], rest: Rest
) -> Heard:
    answer = identifier(response.get("id"))
    conversation = request.get("conversation", response.get("conversation"))
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    heard = Heard(
        None,
        answer=answer,
        conversation=identifier(conversation),
        user=identifier(request.get("user")) or identifier(response.get("user")),
        start=response.get("created_at"),
        end=response.get("completed_at"),
    )
    if response.get("object") == "response.input_tokens":  # nothing was said: a count was asked
        rest.put("request", request)
        rest.put_others(response, frozenset(("object",)), "response")
        heard.kind, heard.name = "other", "count tokens"
        return heard
    heard.call = _call(row, request, response, rest)
    status = str(response.get("status"))
    if status in _UNFINISHED and heard.call.choices:
        heard.error = f"the response breaks off: its status is still {status}"
    elif status not in _UNFINISHED:
        heard.error = _error(response, heard.call)
    if response.get("background") is True and answer:
        heard.span, heard.version = answer, _UNFINISHED.get(status, 2)
        asked = _QUESTION if request else ("kind", "name", "start")
        heard.known = asked if status in _UNFINISHED else (*asked, *_ANSWER)
    elif status in _UNFINISHED and not heard.call.choices:
        heard.error = f"the answer had not come: the response's status is {status}"
    return heard


def _call(
    row: dict[str, Any], request: dict[str, Any], response: dict[str, Any], rest: Rest
) -> ModelCall:
    messages: tuple[Message, ...] = ()
    for source in (request, response):
        told = source.get("instructions")
        if told:
            messages = _instructions(told, rest)
            break
    earlier = request.get("previous_response_id", response.get("previous_response_id"))
    for key, held in (
        ("previous_response", earlier),
        ("conversation", request.get("conversation", response.get("conversation"))),
        ("prompt", request.get("prompt")),
    ):
        if held:
            kept = Unknown(kind=key, raw=rest.bounded(held))
            messages = (*messages, Message(role="earlier", parts=(kept,)))
    if request.get("input") is not None:
        messages += read_items(request["input"], rest, "request.input")
    offered = request.get("tools")
    if offered is None and (not request or response.get("tools")):
        offered = response.get("tools")
    choices = _choices(response, rest, "response")
    usage = read_usage(
        response.get("usage"), any(answered(one.message) for one in choices), rest, "response.usage"
    )
    echoed = {key for key in response.keys() & request.keys() if response[key] == request[key]}
    if isinstance(response.get("error"), dict):
        rest.put_others(response["error"], frozenset(("message",)), "response.error")
    if request.get("tools") and "tools" not in echoed and response.get("tools"):
        rest.tally("response.tools")  # the request's stand: these have what the provider added
    rest.put_others(response, _RESPONSE | echoed | {"status"}, "response")
    if response.get("status") not in (None, "completed"):
        rest.put("response.status", response["status"])
    return ModelCall(
        input=messages,
        choices=choices,
        tools=read_tools(offered, rest, "tools") if offered is not None or request else None,
        model=identifier(request.get("model")) or identifier(row.get("model")),
        response_model=identifier(response.get("model")),
        sampling=_sampling(request, response),
        usage=usage,
    )


def _instructions(told: object, rest: Rest) -> tuple[Message, ...]:
    if isinstance(told, str):
        return (Message(role="system", parts=(rest.text(told),)),)
    return read_items(told, rest, "instructions")


def _sampling(request: dict[str, Any], response: dict[str, Any]) -> Sampling:
    """What was asked for; else what the provider says was in force."""
    asked = {
        key: request[key] if request.get(key) is not None else response.get(key)
        for key in ("temperature", "top_p")
    }
    longest = request.get("max_output_tokens", response.get("max_output_tokens"))
    others = {key: request[key] for key in request.keys() - _ASKED}
    return read_sampling({**asked, "max_tokens": longest}, others)


def _choices(response: dict[str, Any], rest: Rest, path: str) -> tuple[Choice, ...]:
    output = response.get("output")
    if output is None or (not output and response.get("status") not in ("completed", "complete")):
        return ()
    messages = read_items(output, rest, f"{path}.output")
    parts = [part for one in messages if one.role == "assistant" for part in one.parts]
    for one in messages:
        if one.role != "assistant":  # what a compaction kept of the conversation
            rest.put(f"{path}.output.{one.role}", one.text)
    message = Message(role="assistant", parts=tuple(parts))
    return (Choice(message=message, finish_reason=_finish(response, message)),)


def _finish(response: dict[str, Any], message: Message) -> str | None:
    if response.get("status") not in ("completed", "complete", "incomplete", None):
        return None
    details = response.get("incomplete_details")
    if isinstance(details, dict) and details.get("reason"):
        return finish_reason(details["reason"])
    if response.get("status") == "incomplete":
        return None
    return "tool_calls" if any(isinstance(one, ToolCall) for one in message.parts) else "stop"


def _error(response: dict[str, Any], call: ModelCall) -> str | None:
    error = response.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error.get("code") or error)
    if error:
        return str(error)
    if response.get("status") in ("failed", "cancelled"):
        return f"the response's status is {response['status']}"
    return None if call.choices else "the response holds no output"


def _response(value: object) -> dict[str, Any]:
    return response_of(
        value, merge_events, lambda said: str(said.get("type", "")).startswith("response.")
    )

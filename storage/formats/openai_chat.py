"""OpenAI chat completions: one row a request with its response, plain, streamed or failed.

A row is {request, response} and what its logger knew (see `logged`), cache_hit among it; a bare
response is one too. Invariant: what the request and the response state (calls, finish reasons,
usage, token ids) is kept as stated.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.errors import BadRecord
from flywheel.records import Choice, Message, ModelCall, Sampling, Tokens, Usage
from storage.belonging import Belonging

from . import openai_plain, openai_rows
from .finish import finish_reason
from .logged import Heard, identifier, logged, response_of
from .messages import (
    answered,
    name_of,
    read_message,
    read_messages,
    read_sampling,
    read_tools,
)  # fmt: skip
from .openai_fields import ASKED
from .openai_stream import merge_chunks
from .parsed import Context, Parsed, Rest
from .usage import read_usage
from .wire import api_of

if TYPE_CHECKING:
    from storage.prepared import Preparing

SOURCE = "import:openai_chat"

_RESPONSE = frozenset(("id", "model", "choices", "usage", "created", "object", "error",
                       "prompt_token_ids"))  # fmt: skip
_CHOICE = frozenset(("index", "message", "finish_reason", "token_ids", "text"))


def recognise(sample: object) -> bool:
    return api_of(sample) == "chat"


def read(row: dict[str, Any], context: Context) -> Parsed:
    if "request" not in row:
        row = {"response": row}
    rest = context.rest()
    response = _response(row.get("response"))
    call, error = _call(row, response, rest)
    if error is None and isinstance(row.get("response"), str | list) and _breaks_off(call):
        error = "the stream breaks off before its end"
    request = row.get("request")
    heard = Heard(
        call,
        error,
        answer=response["id"] if isinstance(response.get("id"), str) else None,
        user=identifier(request.get("user")) if isinstance(request, dict) else None,
        start=response.get("created"),
    )
    return logged(row, heard, rest, context, SOURCE)


def quick(data: bytes, context: Context) -> Parsed | None:
    return openai_plain.read(data, context, SOURCE)


def direct(data: bytes, context: Context, told: Belonging, ready: "Preparing") -> Parsed | None:
    return openai_rows.add(data, context, SOURCE, told, ready)


def read_response(
    value: dict[str, Any], rest: Rest, path: str, stated: Usage | None = None
) -> tuple[tuple[Choice, ...], Usage]:
    """The choices and the usage of a chat completion's response object."""
    found = value.get("choices")
    if found is not None and not isinstance(found, list):
        raise BadRecord(f"is {name_of(found)}, not a list", field=f"{path}.choices")
    prompt_ids = value.get("prompt_token_ids")
    choices = [
        _choice(item, prompt_ids, rest, f"{path}.choices[{at}]")
        for at, item in enumerate(found or ())
    ]
    choices.sort(key=lambda pair: pair[0])
    messages = [choice.message for _, choice in choices]
    usage = stated or Usage(reason="not reported")
    if value.get("usage") is not None:
        said = any(answered(message) for message in messages)
        usage = read_usage(value["usage"], said, rest, f"{path}.usage")
    rest.put_others(value, _RESPONSE, path)
    return tuple([choice for _, choice in choices]), usage


def _call(
    row: dict[str, Any], response: dict[str, Any], rest: Rest
) -> tuple[ModelCall, str | None]:
    request = row.get("request")
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] | None = None
    sampling = Sampling()
    model = row.get("model")
    if isinstance(request, dict):
        if request.get("messages") is not None:
            messages = read_messages(request["messages"], rest, "request.messages")
        offered = request.get("tools", request.get("functions"))
        tools = read_tools(offered, rest, "request.tools")
        sampling = _sampling(request)
        model = request.get("model") or model
    choices, usage = read_response(response, rest, "response")
    if isinstance(response.get("error"), dict):
        rest.put_others(response["error"], frozenset(("message",)), "response.error")
    cached = row.get("cache_hit")
    cached = cached if isinstance(cached, bool) else None
    used = response.get("usage")
    cost = used.get("cost") if choices and isinstance(used, dict) else None
    if isinstance(cost, bool) or not isinstance(cost, int | float):
        cost = None
    call = ModelCall(
        input=messages,
        choices=choices,
        tools=tools,
        model=identifier(model),
        response_model=identifier(response.get("model")),
        sampling=sampling,
        usage=usage,
        cost_usd=0.0 if cached else (None if cost is None else float(cost)),
        cached=cached,
    )
    return call, _error(response.get("error"), choices)


def _breaks_off(call: ModelCall) -> bool:
    """Of a stream: its last chunk says how each answer ended."""
    return any(choice.finish_reason is None for choice in call.choices)


def _sampling(request: dict[str, Any]) -> Sampling:
    others = {key: request[key] for key in request.keys() - ASKED}
    longest = request.get("max_completion_tokens", request.get("max_tokens"))
    return read_sampling({**request, "max_tokens": longest}, others)


def _choice(value: object, prompt_ids: object, rest: Rest, path: str) -> tuple[int, Choice]:
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not a choice", field=path)
    message = _answer(value, rest, path)
    tokens = _tokens(value, prompt_ids)
    if tokens is None and prompt_ids is not None:
        rest.put("response.prompt_token_ids", prompt_ids)
        rest.put(f"{path}.token_ids", value.get("token_ids"))
    for key in value.keys() - _CHOICE:
        if not (key == "logprobs" and tokens and tokens.logprobs):
            rest.put(f"{path}.{key}", value[key])
    index = value.get("index")
    choice = Choice(
        message=message,
        finish_reason=finish_reason(value.get("finish_reason")),
        tokens=tokens,
    )
    return (index if isinstance(index, int) else 0), choice


def _answer(choice: dict[str, Any], rest: Rest, path: str) -> Message:
    """The choice's message; a stream may never have said its role, a legacy answer is text."""
    message = choice.get("message")
    if message is None:
        said = choice.get("text")
        return Message(role="assistant", parts=(rest.text(said),) if isinstance(said, str) else ())
    if isinstance(message, dict) and message.get("role") is None:
        message = {**message, "role": "assistant"}
    return read_message(message, rest, f"{path}.message")


def _tokens(choice: dict[str, Any], prompt_ids: object) -> Tokens | None:
    """Token ids as vLLM returns them; None where either side is missing or not integers."""
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not ids or not prompt_ids:
        return None
    logprobs = None
    content = choice.get("logprobs")
    content = content.get("content") if isinstance(content, dict) else None
    if isinstance(content, list) and len(content) == len(ids):
        logprobs = [item.get("logprob") if isinstance(item, dict) else None for item in content]
        logprobs = None if None in logprobs else logprobs
    try:
        return msgspec.convert(
            {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logprobs}, Tokens
        )
    except msgspec.ValidationError:
        return None


def _response(value: object) -> dict[str, Any]:
    return response_of(
        value, merge_chunks, lambda said: said.get("object") == "chat.completion.chunk"
    )


def _error(error: object, choices: tuple[Choice, ...]) -> str | None:
    if isinstance(error, dict):
        said = error.get("message") or error.get("code") or error
        return said if isinstance(said, str) else msgspec.json.encode(said).decode()
    if error:
        return str(error)
    return None if choices else "the response holds no choice"

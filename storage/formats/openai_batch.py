"""OpenAI's batch files: lines of requests, {custom_id, method, url, body}, and lines of answers.

A request and its answer are parts of one span, found by their custom_id, whichever file comes
first. Ids that two batches share with different requests contradict each other: then the span says
so. Anthropic's batch results, {custom_id, result}, are answers too.
"""

from typing import Any

import msgspec

from flywheel.errors import BadRecord
from flywheel.records import ModelCall, Span, trace_id
from storage.span_parts import part

from . import anthropic, openai_chat, openai_responses
from .messages import name_of
from .parsed import Context, Parsed, Read
from .wire import Api, api_of, api_of_response

SOURCE = "import:openai_batch"

_READERS: dict[Api, Read] = {
    "chat": openai_chat.read,
    "responses": openai_responses.read,
    "anthropic": anthropic.read,
}
_QUESTION = ("call.input", "call.model", "call.sampling", "call.tools", "kind", "name")
_ANSWER = ("call.choices", "call.usage", "call.response_model", "call.cost_usd", "start", "end",
           "error", "kind", "name")  # fmt: skip
_LINE = frozenset(("custom_id", "body", "params", "response", "result", "error", "id", "method"))


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict) or not isinstance(sample.get("custom_id"), str):
        return False
    return any(isinstance(sample.get(key), dict) for key in ("body", "params", "response",
                                                             "result", "error"))  # fmt: skip


def read(row: dict[str, Any], context: Context) -> Parsed:
    asked = row.get("body", row.get("params"))
    if isinstance(asked, dict):
        return _question(row, asked, context)
    return _answered(row, context)


def _question(row: dict[str, Any], asked: dict[str, Any], context: Context) -> Parsed:
    api = api_of({"request": asked, "response": None})
    if api is None:
        raise BadRecord(f"asks for {row.get('url') or 'something'} that is no conversation")
    parsed = _READERS[api]({"request": asked, "response": None}, context)
    return _placed(row, parsed, _QUESTION, context)


def _answered(row: dict[str, Any], context: Context) -> Parsed:
    response = row.get("response", row.get("result"))
    body: Any = {"error": row.get("error")}
    if isinstance(response, dict):
        body = response.get("body", response.get("message"))
        if body is None:
            said = response.get("error")
            body = {"error": said or f"the request is {response.get('type') or 'unanswered'}"}
    if not isinstance(body, dict):
        raise BadRecord(f"is {name_of(body)}, not an answer", field="response.body")
    api = api_of_response(body)
    if api is None and "error" not in body:
        raise BadRecord("is the answer to something that is no conversation", field="response.body")
    parsed = _READERS[api or "chat"]({"request": None, "response": body}, context)
    return _placed(row, parsed, _ANSWER, context)


def _placed(
    row: dict[str, Any], parsed: Parsed, known: tuple[str, ...], context: Context
) -> Parsed:
    """The one trace of `parsed` under its custom_id, its span a part."""
    name = row["custom_id"]
    (trace,) = parsed.traces
    (span,) = trace.spans
    rest = context.rest()
    rest.put_others(row, _LINE, "")
    response = row.get("response")
    if isinstance(response, dict):
        rest.put_others(response, frozenset(("body", "message", "type")), "response")
    call = span.call or ModelCall(input=())
    placed = Span(
        id=name,
        kind="model",
        name="chat",
        start=span.start,
        end=span.end,
        error=span.error if known is _ANSWER else None,
        call=call,
        attributes={**span.attributes, **rest.take()},
    )
    for path, times in rest.counts.items():
        parsed.unmapped[path] = parsed.unmapped.get(path, 0) + times
    parsed.traces = [
        msgspec.structs.replace(
            trace,
            id=trace_id(context.project, SOURCE, name),
            source=SOURCE,
            external_id=name,
            spans=(part(placed, *known),),
        )
    ]
    return parsed

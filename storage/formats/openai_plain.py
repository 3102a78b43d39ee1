"""The commonest chat row, {request, response} in plain texts, decoded straight into its fields.

Enters a row's bytes; leaves what `openai_chat` makes of them, for less than half of the time, or
None where the row holds anything but these fields: then `openai_chat` reads it. Invariant: the
two never differ (a test compares them). `openai_rows` makes rows of tables of the same fields.
"""

from functools import lru_cache
from typing import Any

from msgspec import UNSET

from flywheel.records import (
    Choice,
    Message,
    ModelCall,
    Part,
    Reasoning,
    Sampling,
    Span,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Usage,
    trace_id,
)

from .feedback import read_feedback
from .finish import finish_reason
from .messages import answered
from .openai_fields import ChatRow, Request, Said, decoded, others, tools_of
from .parsed import Context, Parsed, Rest
from .times import nanoseconds
from .usage import read_usage


def read(data: bytes, context: Context, source: str) -> Parsed | None:
    """The same as `openai_chat.read`; None = that must read it."""
    row = decoded(data)
    if row is None:
        return None
    said = row.trace_id or row.response.id
    tools = tools_of(row.request.tools)
    if not said or tools is None:
        return None
    rest = context.rest()
    span = _span(row, tools, rest)
    trace = Trace(
        id=trace_id(context.project, source, said),
        project=context.project,
        source=source,
        external_id=said,
        origin="import",
        conversation=row.session_id or row.conversation_id or None,
        user=row.user_id or row.request.user or None,
        raw=context.raw,
        spans=(span,),
    )
    told = [] if row.feedback is None else read_feedback(row.feedback, trace)
    return Parsed([trace], told, rest.counts)


def _span(row: ChatRow, tools: tuple[dict[str, Any], ...], rest: Rest) -> Span:
    call = _call(row, tools, rest)
    start, end = times_of(row)
    return Span(
        id=row.span_id,
        kind="model",
        name="chat",
        parents=(row.parent_span_id,) if row.parent_span_id else (),
        start=start,
        end=end,
        call=call,
        attributes=attributes_of(row, rest),
    )


def attributes_of(row: ChatRow, rest: Rest) -> dict[str, Any]:
    """Of the span: what of the response and of `rest` has no other place."""
    rest.put("response.system_fingerprint", row.response.system_fingerprint)
    rest.put("response.service_tier", row.response.service_tier)
    attributes = rest.take()
    if row.response.id:
        attributes["response_id"] = row.response.id
    return attributes


def times_of(row: ChatRow) -> tuple[int | None, int | None]:
    start = nanoseconds(_first(row.start_ns, row.start_time, row.timestamp))
    end = nanoseconds(_first(row.end_ns, row.end_time))
    return nanoseconds(row.response.created) if start is None else start, end


def _first(*values: Any) -> Any:
    """The first that was said, be it null."""
    for value in values:
        if value is not UNSET:
            return value
    return None


def _call(row: ChatRow, tools: tuple[dict[str, Any], ...], rest: Rest) -> ModelCall:
    request, response = row.request, row.response
    said = response.choices
    if len(said) > 1:
        said = sorted(said, key=lambda one: one.index)
    choices = tuple([
        Choice(message=message_of(one.message), finish_reason=finish_reason(one.finish_reason))
        for one in said
    ])  # fmt: skip
    usage = Usage(reason="not reported")
    if response.usage is not None:
        spoken = any([answered(one.message) for one in choices])
        usage = read_usage(response.usage, spoken, rest, "response.usage")
    return ModelCall(
        input=tuple([message_of(one) for one in request.messages]),
        choices=choices,
        tools=tools,
        model=request.model or row.model or None,
        response_model=response.model or None,
        sampling=sampling_of(request),
        usage=usage,
        cost_usd=0.0 if row.cache_hit else None,
        cached=row.cache_hit,
    )


def message_of(said: Said) -> Message:
    role, content = said.role, said.content
    if said.reasoning_content is None and said.tool_calls is None and role != "tool":
        return Message(
            role=role, parts=() if content is None else (Text(text=content),), name=said.name
        )
    parts: list[Part] = []
    if said.reasoning_content is not None:
        parts.append(Reasoning(text=said.reasoning_content))
    if role == "tool":
        ids = said.tool_call_id or None
        parts.append(ToolResult(content=content or "", id=ids, name=said.name or None))
    elif content is not None:
        parts.append(Text(text=content))
    name = None if role == "tool" else said.name
    return Message(role=role, parts=(*parts, *_calls(said)), name=name)


def _calls(said: Said) -> list[ToolCall]:
    return [
        ToolCall(name=one.function.name, arguments=one.function.arguments, id=one.id or None)
        for one in said.tool_calls or ()
    ]


def sampling_of(request: Request) -> Sampling:
    longest, stop = request.max_completion_tokens, request.stop
    longest = request.max_tokens if longest is UNSET else longest
    stops = (stop,) if isinstance(stop, str) else tuple(stop) if stop else ()
    told = (request.temperature, request.top_p, request.top_k, longest, request.seed, stops)
    asked = others(request)
    return _sampling(told, asked) if asked else _usual(*told)


def _sampling(told: tuple[Any, ...], asked: dict[str, Any]) -> Sampling:
    temperature, top_p, top_k, longest, seed, stops = told
    return Sampling(
        temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=longest, seed=seed,
        stop=stops, other=asked,
    )  # fmt: skip


@lru_cache(maxsize=1024, typed=True)
def _usual(*told: Any) -> Sampling:
    """A sender's requests mostly ask for the same."""
    return _sampling(told, {})

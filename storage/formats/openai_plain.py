"""The commonest chat row, {request, response} in plain texts, decoded straight into its fields.

Enters a row's bytes; leaves what `openai_chat` makes of them, for less than half of the time, or
None where the row holds anything but these fields: then `openai_chat` reads it. Invariant: the
two never differ (a test compares them).
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

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
from .messages import answered, read_tools
from .parsed import BIG_FIELD, Context, Parsed
from .times import nanoseconds
from .usage import read_usage

Whole: TypeAlias = Annotated[int, Meta(gt=-(2**63), lt=2**63 - 1)]
Number: TypeAlias = Annotated[float, Meta(gt=-(2.0**62), lt=2.0**62)]
Moment: TypeAlias = int | float | str | None
Nothing: TypeAlias = Annotated[list[Any], Meta(max_length=0)] | None
Asked: TypeAlias = Any | UnsetType
_MOST_DEEP = 200
"""Brackets from which a row may be nested deeper than is read."""


class _Exact(Struct, forbid_unknown_fields=True):
    pass


class _Function(_Exact):
    name: str
    arguments: str


class _Call(_Exact):
    function: _Function
    id: str | None = None
    type: str | None = None
    index: int | None = None


class _Said(_Exact):
    role: Literal["system", "developer", "user", "assistant", "tool"] = "assistant"
    content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: None = None
    refusal: None = None
    function_call: None = None
    audio: None = None
    annotations: Nothing = None


class _Heard(_Said):
    """Of a prompt, where the role must be said."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = msgspec.field()


class _Request(_Exact):
    messages: list[_Heard]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    functions: None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Whole | None = None
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | UnsetType | None = UNSET
    seed: Whole | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    stream: Asked = UNSET
    stream_options: Asked = UNSET
    n: Asked = UNSET
    presence_penalty: Asked = UNSET
    frequency_penalty: Asked = UNSET
    response_format: Asked = UNSET
    tool_choice: Asked = UNSET
    parallel_tool_calls: Asked = UNSET
    logprobs: Asked = UNSET
    top_logprobs: Asked = UNSET
    metadata: Asked = UNSET
    store: Asked = UNSET
    reasoning_effort: Asked = UNSET
    service_tier: Asked = UNSET


_OTHERS = _Request.__struct_fields__[12:]


class _Choice(_Exact):
    message: _Said
    index: int = 0
    finish_reason: str | None = None
    logprobs: None = None


class _Response(_Exact):
    choices: Annotated[list[_Choice], Meta(min_length=1)]
    id: str | None = None
    object: str | None = None
    created: Moment = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    error: None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


class _Row(_Exact):
    span_id: Annotated[str, Meta(min_length=1)]
    request: _Request
    response: _Response
    trace_id: str | None = None
    parent_span_id: str | None = None
    session_id: str | None = None
    conversation_id: str | None = None
    user_id: str | None = None
    start_ns: Moment | UnsetType = UNSET
    end_ns: Moment | UnsetType = UNSET
    start_time: Moment | UnsetType = UNSET
    end_time: Moment | UnsetType = UNSET
    timestamp: Moment | UnsetType = UNSET
    model: str | None = None
    feedback: Any = None
    cache_hit: bool | None = None


_rows = msgspec.json.Decoder(_Row)


def read(data: bytes, context: Context, source: str) -> Parsed | None:
    """The same as `openai_chat.read`; None = that must read it."""
    if len(data) > BIG_FIELD or data.count(b"[") + data.count(b"{") > _MOST_DEEP:
        return None
    if b"\\u0000" in data:
        return None
    try:
        row = _rows.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    answer = row.response.id
    said = row.trace_id or answer
    if not said or (row.response.usage and "cost" in row.response.usage):
        return None
    rest = context.rest()
    call = _call(row, rest)
    rest.put("response.system_fingerprint", row.response.system_fingerprint)
    rest.put("response.service_tier", row.response.service_tier)
    attributes = rest.take()
    if answer:
        attributes["response_id"] = answer
    start = nanoseconds(_first(row.start_ns, row.start_time, row.timestamp))
    span = Span(
        id=row.span_id,
        kind="model",
        name="chat",
        parents=(row.parent_span_id,) if row.parent_span_id else (),
        start=nanoseconds(row.response.created) if start is None else start,
        end=nanoseconds(_first(row.end_ns, row.end_time)),
        call=call,
        attributes=attributes,
    )
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
    told = [] if row.feedback is None else read_feedback(row.feedback, trace, rest)
    return Parsed([trace], told, rest.counts)


def _first(*values: Any) -> Any:
    """The first that was said, be it null."""
    for value in values:
        if value is not UNSET:
            return value
    return None


def _call(row: _Row, rest: Any) -> ModelCall:
    request, response = row.request, row.response
    said = response.choices
    if len(said) > 1:
        said = sorted(said, key=lambda one: one.index)
    choices = tuple([
        Choice(message=_message(one.message), finish_reason=finish_reason(one.finish_reason))
        for one in said
    ])  # fmt: skip
    usage = Usage(reason="not reported")
    if response.usage is not None:
        spoken = any([answered(one.message) for one in choices])
        usage = read_usage(response.usage, spoken, rest, "response.usage")
    return ModelCall(
        input=tuple([_message(one) for one in request.messages]),
        choices=choices,
        tools=read_tools(request.tools, rest, "request.tools"),
        model=request.model or row.model or None,
        response_model=response.model or None,
        sampling=_sampling(request),
        usage=usage,
        cost_usd=0.0 if row.cache_hit else None,
        cached=row.cache_hit,
    )


def _message(said: _Said) -> Message:
    role, content = said.role, said.content
    if role == "tool":
        answer = ToolResult(
            content=content or "", id=said.tool_call_id or None, name=said.name or None
        )
        return Message(role=role, parts=(answer, *_calls(said)))
    if said.reasoning_content is None and said.tool_calls is None:
        return Message(
            role=role, parts=() if content is None else (Text(text=content),), name=said.name
        )
    parts: list[Part] = []
    if said.reasoning_content is not None:
        parts.append(Reasoning(text=said.reasoning_content))
    if content is not None:
        parts.append(Text(text=content))
    return Message(role=role, parts=(*parts, *_calls(said)), name=said.name)


def _calls(said: _Said) -> list[ToolCall]:
    return [
        ToolCall(name=one.function.name, arguments=one.function.arguments, id=one.id or None)
        for one in said.tool_calls or ()
    ]


def _sampling(request: _Request) -> Sampling:
    longest = request.max_completion_tokens
    stop = request.stop or ()
    values = [(name, getattr(request, name)) for name in _OTHERS]
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        max_tokens=request.max_tokens if longest is UNSET else longest,
        seed=request.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        other={name: value for name, value in values if value is not UNSET},
    )

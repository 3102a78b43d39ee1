"""The fields of the commonest chat row, {request, response} in plain texts.

Enters a row's bytes; leaves its fields, or None where it holds anything but these. A field that is
added here is one that `openai_plain` and `openai_rows` must read: a test draws rows of all of them
and compares what each reader gives.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import astuple

from .messages import tool_schema
from .parsed import BIG_FIELD

Whole: TypeAlias = Annotated[int, Meta(gt=-(2**63), lt=2**63 - 1)]
Number: TypeAlias = Annotated[float, Meta(gt=-(2.0**62), lt=2.0**62)]
Moment: TypeAlias = int | float | str | None
Nothing: TypeAlias = Annotated[list[Any], Meta(max_length=0)] | None
Asked: TypeAlias = Any | UnsetType
_MOST_DEEP = 200
"""Brackets from which a row may be nested deeper than is read."""


class _Exact(Struct, forbid_unknown_fields=True, gc=False):
    pass


class _Function(_Exact):
    name: str
    arguments: str


class _Call(_Exact):
    function: _Function
    id: str | None = None
    type: str | None = None
    index: int | None = None


class Said(_Exact):
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


class _Heard(Said):
    """Of a prompt, where the role must be said."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = msgspec.field()


class Request(_Exact):
    messages: list[_Heard]
    model: str | None = None
    tools: msgspec.Raw = msgspec.Raw()
    """Read once for all rows that offer the same ones."""
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


ASKED = frozenset(
    (
        "model", "messages", "tools", "functions", "temperature", "top_p", "top_k", "max_tokens",
        "max_completion_tokens", "seed", "stop", "user",
    )
)  # fmt: skip
"""Fields of a request that have a place of their own; the others stand in `Sampling.other`."""
OTHERS = Request.__struct_fields__[len(ASKED) :]
_UNASKED = (UNSET,) * len(OTHERS)


class _Choice(_Exact):
    message: Said
    index: int = 0
    finish_reason: str | None = None
    logprobs: None = None


class _Response(_Exact):
    choices: Annotated[list[_Choice], Meta(min_length=1)]
    id: str | None = None
    object: Literal["chat.completion"] | None = None
    created: Moment = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    error: None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


class ChatRow(_Exact):
    span_id: Annotated[str, Meta(min_length=1)]
    request: Request
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


_rows = msgspec.json.Decoder(ChatRow)
_tools = msgspec.json.Decoder(list[dict[str, Any]] | None)
_FAULTS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)


def decoded(data: bytes) -> ChatRow | None:
    """The row's fields; None = it is none of these."""
    if len(data) > BIG_FIELD or b"\\u0000" in data:
        return None
    try:
        row = _rows.decode(data)
    except _FAULTS:
        return None
    usage = row.response.usage
    if usage and "cost" in usage:
        return None
    # Only what is of any type can be deep, but for tools, whose own reader looks.
    free = (row.feedback, usage, others(row.request) or None)
    return None if any([one and _holds(one) for one in free]) and _deep(data) else row


def others(request: Request) -> dict[str, Any]:
    """What it asks for besides ASKED."""
    told = astuple(request)[len(ASKED) :]
    if told == _UNASKED:
        return {}
    return {name: value for name, value in zip(OTHERS, told, strict=True) if value is not UNSET}


def tools_of(raw: msgspec.Raw) -> tuple[dict[str, Any], ...] | None:
    """None = they are none."""
    try:
        if not raw:
            return ()
        return None if _deep(raw) else tuple(map(tool_schema, _tools.decode(raw) or ()))
    except _FAULTS:
        return None


def _holds(value: Any) -> bool:
    """Whether there are brackets in the brackets."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any([type(one) in (dict, list) for one in inside])


def _deep(data: bytes | msgspec.Raw) -> bool:
    data = bytes(data)
    return data.count(b"[") + data.count(b"{") > _MOST_DEEP

"""The fields of the commonest chat row, {request, response} in plain texts.

Enters a row's bytes; leaves its fields, or None where it holds anything but these. A field that is
added here is one that `openai_plain` and `openai_rows` must read: a test draws rows of all of them
and compares what each reader gives.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from .messages import tool_schema
from .parsed import BIG_FIELD

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
OTHERS = tuple(name for name in Request.__struct_fields__ if name not in ASKED)


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
    if len(data) > BIG_FIELD or data.count(b"[") + data.count(b"{") > _MOST_DEEP:
        return None
    if b"\\u0000" in data:
        return None
    try:
        row = _rows.decode(data)
    except _FAULTS:
        return None
    return None if row.response.usage and "cost" in row.response.usage else row


def tools_of(raw: msgspec.Raw) -> tuple[dict[str, Any], ...] | None:
    """None = they are none."""
    try:
        return tuple(map(tool_schema, (_tools.decode(raw) if raw else None) or ()))
    except _FAULTS:
        return None

"""One call of a provider's API, as a proxy or a client logged it, as a trace of one model span.

What enters is the row, {request, response} and what its logger knew (trace_id, span_id,
parent_span_id, session_id, user_id, times, feedback), and the call as the API's reader has it.
Identity: the row's trace id, else the answer's id, else the content's digest. Invariant: two calls
under one id never overwrite each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import ModelCall, Span, SpanKind, Trace, trace_id
from storage.span_parts import part

from .feedback import read_feedback
from .messages import name_of
from .nested import nested
from .openai_stream import read_events
from .parsed import Context, Parsed, Rest
from .times import nanoseconds

ROW = frozenset(
    (
        "trace_id", "span_id", "parent_span_id", "session_id", "conversation_id", "user_id",
        "start_ns", "end_ns", "start_time", "end_time", "timestamp", "model", "request",
        "response", "feedback", "cache_hit",
    )
)  # fmt: skip


@dataclass(slots=True)
class Heard:
    """What one API's reader understood of a row."""

    call: ModelCall | None
    error: str | None = None
    answer: str | None = None
    """The provider's id of its answer."""
    conversation: str | None = None
    user: str | None = None
    start: object = None
    """When the provider says it began, in any form; the row's own times stand above it."""
    end: object = None
    kind: SpanKind = "model"
    name: str = "chat"
    span: str | None = None
    """The span's id, where several rows tell of one."""
    known: tuple[str, ...] = ()
    """Where they do: the fields that this row knows (see `Span.parts`)."""
    version: int = 0


def logged(row: dict[str, Any], heard: Heard, rest: Rest, context: Context, source: str) -> Parsed:
    """The trace of one row."""
    start = nanoseconds(row.get("start_ns", row.get("start_time", row.get("timestamp"))))
    end = nanoseconds(row.get("end_ns", row.get("end_time")))
    rest.put_others(row, ROW, "")
    parent = row.get("parent_span_id")
    said = identifier(row.get("trace_id")) or heard.answer
    said = said or digest(row.get("request"), row.get("response"))
    id = identifier(row.get("span_id")) or heard.span
    attributes = rest.take()
    if heard.answer:
        attributes["response_id"] = heard.answer
    span = Span(
        id=id or digest(row.get("request"), row.get("response"))[:16],
        kind=heard.kind,
        name=heard.name,
        parents=(str(parent),) if parent else (),
        start=nanoseconds(heard.start) if start is None else start,
        end=nanoseconds(heard.end) if end is None else end,
        error=heard.error,
        call=heard.call,
        attributes=attributes,
    )
    if heard.known:
        span = part(span, *heard.known, version=heard.version)
    trace = Trace(
        id=trace_id(context.project, source, said),
        project=context.project,
        source=source,
        external_id=said,
        origin="import",
        conversation=identifier(row.get("session_id"))
        or identifier(row.get("conversation_id"))
        or heard.conversation,
        user=identifier(row.get("user_id")) or heard.user,
        raw=context.raw,
        spans=(span,),
    )
    return Parsed([trace], read_feedback(row.get("feedback"), trace), rest.counts)


def identifier(value: object) -> str | None:
    """An id as text; None where there is none."""
    if type(value) is str:
        return value or None
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value) or None


def response_of(
    value: object,
    merged: Callable[[list[dict[str, Any]]], dict[str, Any]],
    is_event: Callable[[dict[str, Any]], bool],
) -> dict[str, Any]:
    """A recorded response as one object, whether it is one, JSON text, a stream or its events.

    Args:
        merged: makes one response of a stream's events, as the provider streams them.
        is_event: tells one of its events from a response.

    Raises:
        BadRecord: it is none of these.
    """
    if value is None:
        return {"error": "no response was recorded"}
    if isinstance(value, str):
        value = read_events(value) or nested(value)
        if isinstance(value, str):
            raise BadRecord("is text, neither JSON nor a stream", field="response")
    if isinstance(value, list):
        value = merged([event for event in value if isinstance(event, dict)])
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not an object", field="response")
    if is_event(value):
        raise BadRecord(
            "is one event of a stream by itself: put a stream's events into one row, as a list",
            field="response",
        )
    return value

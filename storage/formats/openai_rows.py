"""The commonest chat row straight to columns of the store's tables, for less than half of
what records take.

Enters a row's bytes; leaves its call among those of a segment, or None where anything about it is
not plain: then `openai_chat` makes records. Invariant: the rows are those that its records give (a
test compares them).
"""

from functools import partial
from typing import Any

import msgspec

from flywheel.ids import digest
from flywheel.records import Message, Text, Trace, Usage
from storage.belonging import Belonging, owned
from storage.calls import Call
from storage.columns import SpanRest, encode_message, rest_of
from storage.merge import PLAIN
from storage.prepared import Preparing

from . import openai_plain
from .feedback import feedback_on
from .finish import finish_reason
from .openai_fields import ChatRow, Said, decoded, tools_of
from .parsed import NOTHING_ELSE, Context, Parsed, Rest
from .usage import read_usage

_encode = msgspec.json.Encoder().encode
_UNSAID = Usage(reason="not reported")
_TEXT = "\0"


def _around(role: Any) -> tuple[bytes, bytes]:
    """What stands before and after the text of a message that is nothing but a text."""
    before, _, after = _encode(Message(role=role, parts=(Text(text=_TEXT),))).partition(
        _encode(_TEXT)
    )
    return before, after


_AROUND = {role: _around(role) for role in ("system", "developer", "user", "assistant")}


def add(
    data: bytes, context: Context, source: str, told: Belonging, ready: Preparing
) -> Parsed | None:
    """Adds the row's call to `ready`; returns what else the row gave (its trace not)."""
    row = decoded(data)
    if row is None or row.parent_span_id or not _is_plain(row):
        return None
    said = row.trace_id or row.response.id
    tools = ready.rows.offered(row.request.tools, tools_of)
    if not said or tools is None:
        return None
    key = digest(context.project, source, said)
    rest = context.rest()
    usage = _usage(row, rest)
    if rest.counts or ready.holds(key):
        return None
    conversation = row.session_id or row.conversation_id or None
    user = row.user_id or row.request.user or None
    call = _call(
        row, usage, tools[0], rest,
        (context.project, source, said, "import", conversation, user, None, None, None,
         context.raw),
        (None, told.tenant or None, told.consent, told.expires),
    )  # fmt: skip
    ready.rows.toolsets.setdefault(tools[0], tools)
    ready.calls.add(key, call, partial(_record, data, context, source, told))
    if row.feedback is None and not rest.counts:
        return NOTHING_ELSE
    at = call.ended or call.started or 0
    heard = feedback_on(row.feedback, context.project, key, at)
    return Parsed([], heard, rest.counts)


def _record(data: bytes, context: Context, source: str, told: Belonging) -> Trace:
    """The trace whose rows `add` made, for what comes to it later."""
    parsed = openai_plain.read(data, context, source)
    assert parsed is not None
    return owned(parsed.traces[0], told)


def _is_plain(row: ChatRow) -> bool:
    """Whether messages are whole: nothing is to be said against turning them into tokens."""
    if len(row.response.choices) != 1 or not row.request.messages:
        return False
    choice = row.response.choices[0]
    said = choice.message
    if said.role != "assistant":
        return False
    if said.content is None and not said.tool_calls and said.reasoning_content is None:
        return False
    ended = finish_reason(choice.finish_reason)
    if ended == "content_filter":
        return False
    if ended in ("tool_calls", "function_call") and not said.tool_calls:
        return False
    for one in row.request.messages:
        if one.content is None and one.role in ("system", "developer", "user"):
            return False
    return True


def _usage(row: ChatRow, rest: Rest) -> Usage:
    said = row.response.choices[0].message
    if row.response.usage is None:
        return _UNSAID
    spoken = bool(said.content or said.tool_calls) or said.reasoning_content is not None
    return read_usage(row.response.usage, spoken, rest, "response.usage")


def _call(
    row: ChatRow,
    usage: Usage,
    tools: str,
    rest: Rest,
    told: tuple[Any, ...],
    others: tuple[Any, ...],
) -> Call:
    request, response = row.request, row.response
    choice = response.choices[0]
    sampling = openai_plain.sampling_of(request)
    unsaid = SpanRest(
        attributes=openai_plain.attributes_of(row, rest),
        sampling=PLAIN.sampling if sampling == PLAIN.sampling else sampling,
        usage_reason=usage.reason,
        cache_write_tokens=usage.cache_write_tokens,
    )
    said: list[Said] = [*request.messages, choice.message]
    start, end = openai_plain.times_of(row)
    return Call(
        told, others, row.span_id, start, end, [one.role for one in said], [*map(_body, said)],
        finish_reason(choice.finish_reason), tools, request.model or row.model or None,
        response.model or None, usage, 0.0 if row.cache_hit else None, row.cache_hit,
        rest_of(unsaid),
    )  # fmt: skip


def _body(said: Said) -> bytes:
    """The message's JSON."""
    if (
        said.content is not None
        and (around := _AROUND.get(said.role)) is not None
        and said.tool_calls is None
        and said.name is None
        and said.reasoning_content is None
    ):
        return around[0] + _encode(said.content) + around[1]
    return encode_message(openai_plain.message_of(said))

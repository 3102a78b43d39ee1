"""A merged trace as rows of the store's tables: each message once, nothing lost.

Enters a trace; leaves rows for traces, spans, tokens, messages and toolsets. What has a column is
only there, what has none is in the row's JSON. `storage.assembled` makes the equal trace of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import field

from flywheel.ids import digest_bytes
from flywheel.records import (
    Message,
    Record,
    Sampling,
    Span,
    Tokens,
    ToolCall,
    ToolResult,
    Trace,
)
from storage.merge import PLAIN

_TEXT, _TEXTS, _INT, _FLOAT, _BOOL = "VARCHAR", "VARCHAR[]", "BIGINT", "DOUBLE", "BOOLEAN"

TRACES = {
    "id": _TEXT, "since": _INT, "project": _TEXT, "source": _TEXT, "external_id": _TEXT,
    "origin": _TEXT, "conversation": _TEXT, "user_id": _TEXT, "problem_id": _TEXT, "run_id": _TEXT,
    "attempt": _INT, "raw": _TEXT, "raws": _TEXTS, "fidelity": _TEXT, "fidelity_reasons": _TEXTS,
    "started": _INT, "ended": _INT, "spans": _INT, "incomplete": _BOOL, "digest": _TEXT,
    "content": _TEXT, "duplicate_of": _TEXT, "rest": _TEXT, "tenant": _TEXT, "consent": _TEXT,
    "expires": _INT,
}  # fmt: skip
SPANS = {
    "trace_id": _TEXT, "id": _TEXT, "since": _INT, "kind": _TEXT, "name": _TEXT, "parents": _TEXTS,
    "started": _INT, "ended": _INT, "error": _TEXT, "version": _INT, "copy_of": _TEXT,
    "input": _TEXTS, "output": _TEXTS, "finish_reasons": _TEXTS, "tools": _TEXT, "model": _TEXT,
    "response_model": _TEXT, "deployment": _TEXT, "routing_probability": _FLOAT,
    "input_tokens": _INT, "cached_input_tokens": _INT, "output_tokens": _INT,
    "reasoning_tokens": _INT, "cost_usd": _FLOAT, "cached": _BOOL, "rest": _TEXT,
}  # fmt: skip
TOKENS = {
    "trace_id": _TEXT, "span_id": _TEXT, "since": _INT, "choice": _INT, "prompt_ids": "BIGINT[]",
    "completion_ids": "BIGINT[]", "logprobs": "DOUBLE[]", "policy_versions": _TEXTS,
    "template_digest": _TEXT, "tokenizer_digest": _TEXT, "experts": "BLOB",
}  # fmt: skip
MESSAGES = {"id": _TEXT, "role": _TEXT, "body": _TEXT, "key": _INT}
TOOLSETS = {"id": _TEXT, "body": _TEXT}


class SpanRest(Record, frozen=True, kw_only=True):
    """What of a span has no column."""

    attributes: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    tool: ToolCall | None = None
    result: ToolResult | None = None
    sampling: Sampling = PLAIN.sampling
    usage_reason: str | None = None
    cache_write_tokens: int | None = None


_encoder = msgspec.json.Encoder(order="deterministic")
_packer = msgspec.msgpack.Encoder()
encode_message: Callable[[Message], bytes] = _encoder.encode
"""The JSON by which a message is kept, and known."""
_OWN = 7
"""Columns of a span's own, before its call's."""


def short_key(message_id: str) -> int:
    """The number under which a message is looked up: among millions, numbers are found ten times
    faster than ids. Two messages may share one, so that ids are compared too."""
    return int(message_id[:15], 16)


class Rows:
    """Rows of many traces, under one ledger sequence."""

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence
        self.traces: list[tuple[Any, ...]] = []
        self.spans: list[tuple[Any, ...]] = []
        self.tokens: list[tuple[Any, ...]] = []
        self.messages: dict[str, tuple[str, str, bytes, int]] = {}
        self.toolsets: dict[str, tuple[str, bytes]] = {}
        self._keys: dict[int, str] = {}
        self._offered: dict[bytes, tuple[str, bytes] | None] = {}
        self._rows: dict[int, tuple[Any, ...]] = {}
        self._alive: list[object] = []
        """What the ids above are of, so that no other object gets one."""

    def add_trace(self, seen: Trace, *, raws: list[str], absent: bool) -> None:
        """`seen`: judged, as readers see it."""
        spans = seen.spans
        rows = [self._row(span) for span in spans]
        starts = [span.start for span in spans if span.start is not None]
        ends = [span.end for span in spans if span.end is not None]
        told = (
            seen.project, seen.source, seen.external_id, seen.origin, seen.conversation, seen.user,
            seen.problem_id, seen.run_id, seen.attempt, seen.raw,
        )  # fmt: skip
        judged = (seen.fidelity, seen.fidelity_reasons)
        others = (
            _encoder.encode(seen.attributes) if seen.attributes else None, seen.tenant,
            seen.consent, seen.expires,
        )  # fmt: skip
        whole = [told, judged, others, [span.id for span in spans], rows, _sampled(spans)]
        self.traces.append((
            seen.id, self._sequence, *told, raws, *judged, min(starts, default=None),
            max(ends, default=None), len(spans), absent,
            digest_bytes(_packer.encode(whole)), _content(rows), None, *others,
        ))  # fmt: skip

    def add_span(self, trace_id: str, span: Span, copy_of: str | None) -> None:
        row = self._row(span)
        first, second = row[:_OWN], row[_OWN:]
        self.spans.append((trace_id, span.id, self._sequence, *first, copy_of, *second))
        if span.call is None:
            return
        for number, choice in enumerate(span.call.choices):
            if (one := choice.tokens) is not None:
                self.tokens.append((
                    trace_id, span.id, self._sequence, number, one.prompt_ids, one.completion_ids,
                    one.logprobs, one.policy_versions, one.template_digest, one.tokenizer_digest,
                    one.experts and msgspec.msgpack.encode(one.experts),
                ))  # fmt: skip

    def _row(self, span: Span) -> tuple[Any, ...]:
        """What of a span's row is of the span alone."""
        if (known := self._rows.get(id(span))) is not None:
            return known
        call = span.call
        own = (
            span.kind, span.name, span.parents, span.start, span.end, span.error, span.version
        )  # fmt: skip
        if call is None:
            rest = SpanRest(
                attributes=span.attributes, parts=span.parts, tool=span.tool, result=span.result
            )
            row: tuple[Any, ...] = (*own, *[None] * 14, rest_of(rest))
        else:
            usage = call.usage
            rest = SpanRest(
                attributes=span.attributes, parts=span.parts, tool=span.tool, result=span.result,
                sampling=call.sampling, usage_reason=usage.reason,
                cache_write_tokens=usage.cache_write_tokens,
            )  # fmt: skip
            row = (
                *own, self._messages(call.input),
                self._messages([choice.message for choice in call.choices]),
                [choice.finish_reason for choice in call.choices], self._tools(call.tools),
                call.model, call.response_model, call.deployment, call.routing_probability,
                usage.input_tokens, usage.cached_input_tokens, usage.output_tokens,
                usage.reasoning_tokens, call.cost_usd, call.cached, rest_of(rest),
            )  # fmt: skip
        self._rows[id(span)] = row
        self._alive.append(span)
        return row

    def _messages(self, messages: Sequence[Message]) -> list[str]:
        keys, found = self._keys, list[str]()
        for message in messages:
            key = keys.get(id(message))
            if key is None:
                keys[id(message)] = key = self._message(message)
                self._alive.append(message)
            found.append(key)
        return found

    def _message(self, message: Message) -> str:
        body = encode_message(message)
        key = digest_bytes(body)
        if key not in self.messages:
            self.messages[key] = (key, message.role, body, short_key(key))
        return key

    def offered(
        self, raw: msgspec.Raw, read: Callable[[msgspec.Raw], tuple[dict[str, Any], ...] | None]
    ) -> tuple[str, bytes] | None:
        """Tools as they were offered, as a row that is not among the others yet; None = `read` does
        not know them as tools. What is offered again in the same bytes is read once."""
        said = bytes(raw)
        if said not in self._offered:
            tools = read(raw)
            self._offered[said] = None if tools is None else _toolset(tools)
        return self._offered[said]

    def _tools(self, tools: tuple[dict[str, Any], ...] | None) -> str | None:
        if tools is None:
            return None
        made = _toolset(tools)
        self.toolsets.setdefault(made[0], made)
        return made[0]


def _toolset(tools: tuple[dict[str, Any], ...]) -> tuple[str, bytes]:
    body = _encoder.encode(tools)
    return digest_bytes(body), body


def _content(rows: list[tuple[Any, ...]]) -> str | None:
    """A hash of what was said in a trace's model calls, without ids and times."""
    said = ["".join((*row[_OWN], *row[_OWN + 1])) for row in rows if row[_OWN + 1]]
    return digest_bytes("\n".join(sorted(said)).encode()) if said else None


def _sampled(spans: Sequence[Span]) -> list[Tokens]:
    choices = [choice for span in spans if span.call for choice in span.call.choices]
    return [choice.tokens for choice in choices if choice.tokens is not None]


def rest_of(rest: SpanRest) -> bytes | None:
    """The JSON of what has no column; None = there is nothing."""
    body = _encoder.encode(rest)
    return None if body == b"{}" else body

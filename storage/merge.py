"""Parts of one trace become one trace, whatever order, grouping and repetition they came in.

Every field's rule picks a greatest element: a span by (version, content hash), one told in parts
field by field (see `span_parts`), a plain field by (known, content hash), attributes key by key,
a refused consent before a given one, the earliest end of keeping.
What is picked never depends on what came first, so merging is associative, commutative and
idempotent.
"""

from typing import Any

import msgspec

from flywheel.ids import digest
from flywheel.records import ModelCall, Span, Trace
from storage.fidelity import judge
from storage.span_parts import joined

_PLAIN = (
    "project", "source", "external_id", "origin", "conversation", "user", "tenant", "problem_id",
    "run_id", "attempt", "raw",
)  # fmt: skip

PLAIN = ModelCall(input=())
"""Holds the defaults themselves, by which an encoder knows what to leave out."""


def merge(state: Trace | None, part: Trace) -> Trace:
    """What is known after `part` came to `state`; `state` itself where it brings nothing new."""
    if state is None:
        return _normal(part)
    changes: dict[str, Any] = {}
    for name in _PLAIN:
        old, new = getattr(state, name), getattr(part, name)
        if old != new and _greater(old, new) is not old:
            changes[name] = new
    if part.consent is not None and part.consent != state.consent and state.consent != "denied":
        changes["consent"] = part.consent
    if part.expires is not None and (state.expires is None or part.expires < state.expires):
        changes["expires"] = part.expires
    attributes = _merged(state.attributes, part.attributes)
    if attributes is not state.attributes:
        changes["attributes"] = attributes
    spans = {span.id: span for span in state.spans}
    before = dict(spans)
    for span in part.spans:
        spans[span.id] = _winner(spans.get(span.id), settled(span))
    if spans != before:
        changes["spans"] = _ordered(spans)
    return msgspec.structs.replace(state, **changes) if changes else state


def settled(span: Span) -> Span:
    """`span` in the one form that equal spans have as bytes.

    A default that was spelled out is written, the default itself is not: hashes must not differ.
    """
    call = span.call
    if call is None:
        return span
    changes: dict[str, Any] = {}
    if call.sampling is not PLAIN.sampling and call.sampling == PLAIN.sampling:
        changes["sampling"] = PLAIN.sampling
    if call.usage is not PLAIN.usage and call.usage == PLAIN.usage:
        changes["usage"] = PLAIN.usage
    if not changes:
        return span
    return msgspec.structs.replace(span, call=msgspec.structs.replace(call, **changes))


def copies(trace: Trace) -> dict[str, str]:
    """Spans that say the same as another of the trace under another id, and which one.

    A sender that crashed exports again under new ids. Only a span with a time, or a model call, is
    known to be the same event: two steps without either may look alike and be two.
    """
    if len(trace.spans) < 2:
        return {}
    kept: dict[str, str] = {}
    found: dict[str, str] = {}
    for span in sorted(trace.spans, key=lambda span: span.id):
        if span.start is None and span.call is None:
            continue
        content = digest(msgspec.structs.replace(span, id="", parents=(), version=0))
        if (first := kept.setdefault(content, span.id)) != span.id:
            found[span.id] = first
    return found


def counted_once(trace: Trace, copied: dict[str, str]) -> Trace:
    """`trace` as readers see it: without copied spans, whose children hang on what stays."""
    if not copied:
        return trace
    spans = tuple(
        msgspec.structs.replace(
            span,
            parents=tuple(dict.fromkeys(copied.get(parent, parent) for parent in span.parents)),
        )
        for span in trace.spans
        if span.id not in copied
    )
    return msgspec.structs.replace(trace, spans=spans)


def missing_parents(trace: Trace) -> list[str]:
    """Ids of parent spans that have not come. A span under one stands as a root until it does."""
    if all(not span.parents for span in trace.spans):
        return []
    there = {span.id for span in trace.spans}
    return sorted({one for span in trace.spans for one in span.parents if one not in there})


def roots(trace: Trace) -> list[Span]:
    """Spans none of whose parents are here; provisional while the trace is incomplete."""
    there = {span.id for span in trace.spans}
    return [span for span in trace.spans if not there.intersection(span.parents)]


def judged(trace: Trace) -> Trace:
    """`trace` with its fidelity as its spans now stand."""
    fidelity, reasons = judge(trace)
    absent = missing_parents(trace)
    if absent:
        missing = "1 parent span has" if len(absent) == 1 else f"{len(absent)} parent spans have"
        reasons = (*reasons, f"incomplete: {missing} not come ({absent[0]})")
    return msgspec.structs.replace(trace, fidelity=fidelity, fidelity_reasons=reasons)


def _normal(part: Trace) -> Trace:
    if len(part.spans) == 1 and part.fidelity is None and settled(part.spans[0]) is part.spans[0]:
        return part
    spans: dict[str, Span] = {}
    for span in part.spans:
        spans[span.id] = _winner(spans.get(span.id), settled(span))
    return msgspec.structs.replace(part, spans=_ordered(spans), fidelity=None, fidelity_reasons=())


def _ordered(spans: dict[str, Span]) -> tuple[Span, ...]:
    if len(spans) < 2:
        return tuple(spans.values())
    return tuple(sorted(spans.values(), key=lambda span: (span.start or 0, span.id)))


def _winner(old: Span | None, new: Span) -> Span:
    if old is None or old == new:
        return new if old is None else old
    if old.parts or new.parts:
        if old.parts and new.parts:
            return settled(joined(old, new))
        return new if old.parts else old
    if old.version != new.version:
        return old if old.version > new.version else new
    return old if digest(old) >= digest(new) else new


def _greater(old: Any, new: Any) -> Any:
    if old is None or new is None:
        return new if old is None else old
    return old if digest(old) >= digest(new) else new


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        merged[key] = _greater(old.get(key), value) if key in old else value
    return merged if merged != old else old

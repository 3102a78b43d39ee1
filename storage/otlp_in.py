"""OTLP in protobuf, as collectors and exporters write it, as JSON lines of the OTLP format.

Enter blocks of bytes: one export request, several one after the other, or each behind its size
in four bytes (the collector's file exporter). Leaves a line for each resource's spans or logs.
Invariant: no more than one resource's spans are held at once.
"""

import base64
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from flywheel.errors import BadRecord

MOST_BYTES = 64 << 20
"""Bytes that one resource's spans may have."""
_TAG = 0x0A
"""Of field 1, length-delimited: both requests hold their resources in it."""

_encoder = msgspec.json.Encoder()


def is_otlp(head: bytes) -> bool:
    """Whether a file that begins with `head` (some KiB) holds such requests."""
    if head[:1] == b"\x00":
        head = head[4:]
    if head[:1] != b"\x0a":
        return False
    try:
        size, at = _varint(head, 1)
    except IndexError:
        return False
    inner = head[at : at + size]
    # A resource's spans begin with the resource or a scope, and theirs with a text or a list.
    if inner[:1] not in (b"\x0a", b"\x12") or size > MOST_BYTES:
        return False
    try:
        below, start = _varint(inner, 1)
    except IndexError:
        return False
    if start + below > size:
        return False
    return inner[start : start + 1] in (b"", b"\x0a", b"\x10", b"\x12", b"\x1a")


def json_lines(
    blocks: Iterator[bytes], kind: Literal["spans", "logs"] | None = None
) -> Iterator[bytes]:
    """One line for each resource.

    Args:
        kind: what the requests hold. None = told by each.

    Raises:
        BadRecord: it breaks off, or is something else, from some place on.
    """
    for data in _resources(blocks):
        yield _encoder.encode(_read(data, kind)) + b"\n"


def _resources(blocks: Iterator[bytes]) -> Iterator[bytes]:
    held, framed, done = b"", False, 0
    for block in blocks:
        held += block
        if done == 0 and held[:1] == b"\x00":
            framed = True
        while True:
            try:
                start, end = _next(held, framed)
            except IndexError:
                break  # its head is not all there yet
            if end > len(held):
                if end - start > MOST_BYTES:
                    raise BadRecord(f"has over {MOST_BYTES >> 20} MiB of one resource's spans")
                break
            yield held[start:end]
            held, done = held[end:], done + 1
    if held:
        raise BadRecord(f"is cut off: OTLP in protobuf ends inside resource {done + 1}")


def _next(held: bytes, framed: bool) -> tuple[int, int]:
    """Where the next resource's bytes stand. A frame's size is skipped: its message is whole."""
    at = 0
    if framed and held[:1] == b"\x00":
        at = 4
    if held[at] != _TAG:
        raise BadRecord(f"is no OTLP in protobuf (field {held[at] >> 3} of a request)")
    size, start = _varint(held, at + 1)
    return start, start + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise BadRecord("is no OTLP in protobuf (a size that has no end)")


def _read(data: bytes, kind: str | None) -> dict[str, Any]:
    """Spans, or log records: the two requests differ below their first levels only."""
    from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

    found = None if kind == "logs" else _parsed(ResourceSpans, data)
    if found is not None and (kind == "spans" or _are_spans(found)):
        scopes = [
            {**_scope(scope), "spans": [_span(span) for span in scope.spans]}
            for scope in found.scope_spans
        ]
        return {"resourceSpans": [{**_resource(found), "scopeSpans": scopes}]}
    logs = None if kind == "spans" else _parsed(ResourceLogs, data)
    if logs is None:
        said = f"no {kind}" if kind else "neither spans nor log records"
        raise BadRecord(f"is no OTLP in protobuf: {said}")
    held = [
        {**_scope(scope), "logRecords": [_log(one) for one in scope.log_records]}
        for scope in logs.scope_logs
    ]
    return {"resourceLogs": [{**_resource(logs), "scopeLogs": held}]}


def _are_spans(found: Any) -> bool:
    spans = [span for scope in found.scope_spans for span in scope.spans]
    return not found.scope_spans or any(len(span.trace_id) == 16 for span in spans)


def _parsed(message: Any, data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return message.FromString(data)
    except DecodeError:
        return None


def _resource(group: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"resource": {"attributes": _attributes(group.resource.attributes)}}
    return {**found, "schemaUrl": group.schema_url} if group.schema_url else found


def _scope(group: Any) -> dict[str, Any]:
    scope = group.scope
    said: dict[str, Any] = {"name": scope.name, "version": scope.version}
    if scope.attributes:
        said["attributes"] = _attributes(scope.attributes)
    return {"scope": said, **({"schemaUrl": group.schema_url} if group.schema_url else {})}


def _span(span: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": span.start_time_unix_nano,
        "endTimeUnixNano": span.end_time_unix_nano,
        "attributes": _attributes(span.attributes),
        "status": {"code": span.status.code, "message": span.status.message},
    }
    if span.parent_span_id:
        found["parentSpanId"] = span.parent_span_id.hex()
    if span.trace_state:
        found["traceState"] = span.trace_state
    if span.events:
        found["events"] = [
            {
                "name": event.name,
                "timeUnixNano": event.time_unix_nano,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ]
    if span.links:
        found["links"] = [
            {
                "traceId": link.trace_id.hex(),
                "spanId": link.span_id.hex(),
                "attributes": _attributes(link.attributes),
            }
            for link in span.links
        ]
    for what in ("attributes", "events", "links"):
        if count := getattr(span, f"dropped_{what}_count"):
            found[f"dropped{what.title()}Count"] = count
    return found


def _log(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": record.trace_id.hex(),
        "spanId": record.span_id.hex(),
        "timeUnixNano": record.time_unix_nano,
        "observedTimeUnixNano": record.observed_time_unix_nano,
        "attributes": _attributes(record.attributes),
        "body": _value(record.body),
    }
    if record.event_name:
        found["eventName"] = record.event_name
    if record.severity_text:
        found["severityText"] = record.severity_text
    if record.severity_number:
        found["severityNumber"] = record.severity_number
    return found


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    held = getattr(value, kind)
    if kind == "array_value":
        return [_value(one) for one in held.values]
    if kind == "kvlist_value":
        return _attributes(held.values)
    if kind == "bytes_value":
        return base64.b64encode(held).decode()
    return held

"""OTLP/JSON: export requests with resourceSpans or resourceLogs, one a document or a line.

Each span becomes a Span of the trace that it names, whatever file or batch it came in; the
committer joins the parts. The source is the sending service. Events that arrive as log records
carry a span's messages: they become a child of that span, since joins across files come later.
Invariant: a span that cannot be understood is rejected alone, the batch stands.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Span, Trace, trace_id

from .messages import name_of
from .otlp_genai import SpanContent, conversation_of, read_content
from .parsed import Context, Parsed, Rest
from .times import nanoseconds

_SPAN = frozenset(
    (
        "traceId", "spanId", "parentSpanId", "name", "startTimeUnixNano", "endTimeUnixNano",
        "attributes", "status", "events", "links", "flags", "kind",
    )
)  # fmt: skip
_LOG = frozenset(("traceId", "spanId", "attributes", "body", "timeUnixNano", "flags", "eventName",
                  "observedTimeUnixNano", "severityNumber", "severityText"))  # fmt: skip
_FAILED = (2, "2", "STATUS_CODE_ERROR")
_MOST_DEPTH = 32


def recognise(sample: object) -> bool:
    return isinstance(sample, dict) and (
        isinstance(sample.get("resourceSpans"), list)
        or isinstance(sample.get("resourceLogs"), list)
    )


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    parsed = Parsed(unmapped=rest.counts)
    traces: dict[str, _Building] = {}
    for batch, resource, scope, path in _batches(row, "resourceSpans", "scopeSpans", "spans", rest):
        for at, value in enumerate(batch):
            try:
                external, span, facts = _span(value, scope, rest)
                _add(traces, resource, external, span, facts, context)
            except BadRecord as error:
                where = f"{path}[{at}]"
                field = f"{where}.{error.field}" if error.field else where
                parsed.rejects.append(BadRecord(error.reason, field=field))
    _read_logs(row, traces, rest, parsed, context)
    rest.put_others(row, frozenset(("resourceSpans", "resourceLogs")), "")
    parsed.traces.extend(building.trace(context) for building in traces.values())
    return parsed


class _Building:
    """One trace as far as this document tells it."""

    def __init__(self, source: str, external: str, attributes: dict[str, Any]) -> None:
        self.source, self.external, self.attributes = source, external, attributes
        self.spans: list[Span] = []
        self.facts: dict[str, str] = {}

    def trace(self, context: Context) -> Trace:
        return Trace(
            id=trace_id(context.project, self.source, self.external),
            project=context.project,
            source=self.source,
            external_id=self.external,
            origin="import",
            spans=tuple(self.spans),
            conversation=self.facts.get("conversation"),
            user=self.facts.get("user"),
            raw=context.raw,
            attributes=self.attributes,
        )


def _add(
    traces: dict[str, _Building],
    resource: dict[str, Any],
    external: str,
    span: Span,
    facts: dict[str, str],
    context: Context,
) -> None:
    service = resource.get("service.name")
    named = isinstance(service, str) and service and not service.startswith("unknown_service")
    source = f"import:{service}" if named else "import:otlp"
    found = traces.get(source + external)
    if found is None:
        attributes = {f"resource.{key}": value for key, value in resource.items()}
        found = traces[source + external] = _Building(source, external, attributes)
    found.spans.append(span)
    for name, value in facts.items():
        found.facts.setdefault(name, value)


def _batches(
    row: dict[str, Any], outer: str, middle: str, inner: str, rest: Rest
) -> Iterator[tuple[list[Any], dict[str, Any], str, str]]:
    """Each scope's list of spans (or log records), with its resource and its scope's name."""
    groups = row.get(outer)
    for at, group in enumerate(groups if isinstance(groups, list) else ()):
        if not isinstance(group, dict):
            rest.put(f"{outer}[{at}]", group)
            continue
        held = group.get("resource")
        resource = attributes_of(held.get("attributes") if isinstance(held, dict) else None)
        for key in resource:
            if key != "service.name":
                rest.counts[f"resource.{key}"] = rest.counts.get(f"resource.{key}", 0) + 1
        scopes = group.get(middle, group.get("instrumentationLibrarySpans"))
        for below, scope in enumerate(scopes if isinstance(scopes, list) else ()):
            batch = scope.get(inner) if isinstance(scope, dict) else None
            if isinstance(batch, list):
                named = scope.get("scope")
                name = f"{named.get('name', '')}@{named.get('version', '')}" if named else ""
                yield batch, resource, name, f"{outer}[{at}].{middle}[{below}].{inner}"


def _span(value: object, scope: str, rest: Rest) -> tuple[str, Span, dict[str, str]]:
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not a span")
    external = hex_id(value.get("traceId"), 16, "traceId")
    id = hex_id(value.get("spanId"), 8, "spanId")
    rest.take()
    attributes = attributes_of(value.get("attributes"))
    events = _events(value.get("events"))
    content = read_content(str(value.get("name") or ""), attributes, events, rest)
    facts = conversation_of(attributes)
    for key, item in attributes.items():
        if key not in content.used:
            rest.put(f"attributes.{key}", item)
    for event in content.events_left:
        _put_event(event, rest)
    kept = content.events_left
    error = _failure(value.get("status"), events)
    parents = (
        [hex_id(value["parentSpanId"], 8, "parentSpanId")] if value.get("parentSpanId") else []
    )
    parents += _links(value.get("links"), external, rest)
    rest.put_others(value, _SPAN, "span")
    own = {key.removeprefix("attributes."): item for key, item in rest.take().items()}
    if scope not in ("", "@"):
        own["scope"] = scope
    if kept:
        own["events"] = rest.bounded(kept)
    kind = value.get("kind")
    if isinstance(kind, str | int) and kind not in (0, 1, "SPAN_KIND_INTERNAL"):
        own["kind"] = kind
    span = Span(
        id=id,
        kind=content.kind,
        name=str(value.get("name") or ""),
        parents=tuple(dict.fromkeys(parents)),
        start=nanoseconds(value.get("startTimeUnixNano")),
        end=nanoseconds(value.get("endTimeUnixNano")),
        error=error,
        call=content.call,
        tool=content.tool,
        result=content.result,
        attributes=own,
    )
    return external, span, facts


def _put_event(event: dict[str, Any], rest: Rest) -> None:
    name = f"events.{event['name']}"
    rest.counts[name] = rest.counts.get(name, 0) + 1


def _failure(status: object, events: list[dict[str, Any]]) -> str | None:
    if not isinstance(status, dict) or status.get("code") not in _FAILED:
        return None
    if status.get("message"):
        return str(status["message"])
    for event in events:
        said = event["attributes"].get("exception.message")
        if said:
            return str(said)
    return "the span's status is error"


def _links(values: object, external: str, rest: Rest) -> list[str]:
    """Links inside the trace are further parents; others are kept as attributes."""
    parents = []
    for at, link in enumerate(values if isinstance(values, list) else ()):
        try:
            if hex_id(link["traceId"], 16, "traceId") == external:
                parents.append(hex_id(link["spanId"], 8, "spanId"))
                continue
        except (BadRecord, TypeError, KeyError):
            pass  # no link that can be followed: kept below as it came
        rest.put(f"links[{at}]", link)
    return parents


def _events(values: object) -> list[dict[str, Any]]:
    found = []
    for value in values if isinstance(values, list) else ():
        if isinstance(value, dict):
            found.append(
                {
                    "name": str(value.get("name") or ""),
                    "time": nanoseconds(value.get("timeUnixNano")),
                    "attributes": attributes_of(value.get("attributes")),
                }
            )
    return found


def _read_logs(
    row: dict[str, Any],
    traces: dict[str, _Building],
    rest: Rest,
    parsed: Parsed,
    context: Context,
) -> None:
    """Log records of one span, in order, become one child span that holds its messages."""
    spoken: dict[tuple[str, str], list[dict[str, Any]]] = {}
    resources: dict[tuple[str, str], dict[str, Any]] = {}
    for batch, resource, _, path in _batches(row, "resourceLogs", "scopeLogs", "logRecords", rest):
        for at, value in enumerate(batch):
            try:
                key, event = _log(value, rest)
            except BadRecord as error:
                parsed.rejects.append(
                    BadRecord(error.reason, field=f"{path}[{at}].{error.field or ''}".rstrip("."))
                )
                continue
            spoken.setdefault(key, []).append(event)
            resources[key] = resource
    for key, events in spoken.items():
        external, parent = key
        rest.take()
        events.sort(key=lambda event: event["time"] or 0)
        content: SpanContent = read_content("", {}, events, rest)
        for event in content.events_left:
            _put_event(event, rest)
        own = rest.take()
        if content.events_left:
            own["events"] = rest.bounded(content.events_left)
        span = Span(
            id=f"{parent}:events",
            kind=content.kind,
            name="message events",
            parents=(parent,),
            start=events[0]["time"],
            end=events[-1]["time"],
            call=content.call,
            attributes=own,
        )
        _add(traces, resources[key], external, span, {}, context)


def _log(value: object, rest: Rest) -> tuple[tuple[str, str], dict[str, Any]]:
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not a log record")
    external = hex_id(value.get("traceId"), 16, "traceId")
    id = hex_id(value.get("spanId"), 8, "spanId")
    attributes = attributes_of(value.get("attributes"))
    name = value.get("eventName") or attributes.pop("event.name", None) or "log"
    body = any_value(value.get("body"))
    rest.put_others(value, _LOG, "log")
    time = nanoseconds(value.get("timeUnixNano")) or nanoseconds(value.get("observedTimeUnixNano"))
    event = {"name": str(name), "time": time, "attributes": attributes}
    if body is not None:
        event["body"] = body
    return (external, id), event


def hex_id(value: object, size: int, name: str) -> str:
    """An id as lower-case hex, from hex or (as protobuf's own JSON has it) base64."""
    if not isinstance(value, str) or not value:
        raise BadRecord("is missing" if value is None else "is not an id", field=name)
    if len(value) == 2 * size:
        return value.lower()
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    return data.hex() if len(data) == size else value


def attributes_of(values: object) -> dict[str, Any]:
    """OTLP's list of key and typed value, or a plain object, as one dictionary."""
    if isinstance(values, dict):
        return dict(values)
    found: dict[str, Any] = {}
    for item in values if isinstance(values, list) else ():
        if isinstance(item, dict) and isinstance(item.get("key"), str):
            found[item["key"]] = any_value(item.get("value"))
    return found


def any_value(value: object, depth: int = 0) -> Any:
    """An AnyValue as the plain value it holds; integers come as text and leave as integers."""
    if not isinstance(value, dict) or depth > _MOST_DEPTH:
        return value
    for kind, held in value.items():
        if kind == "intValue":
            try:
                return int(held)
            except (TypeError, ValueError):
                return held
        if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
            return held
        if kind == "arrayValue":
            items = held.get("values") if isinstance(held, dict) else None
            return [any_value(item, depth + 1) for item in items or ()]
        if kind == "kvlistValue":
            items = held.get("values") if isinstance(held, dict) else None
            return {
                item["key"]: any_value(item.get("value"), depth + 1)
                for item in items or ()
                if isinstance(item, dict) and isinstance(item.get("key"), str)
            }
    return value or None

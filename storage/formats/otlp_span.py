"""One OTLP span or log record: its ids, times, parents, state and plain attributes.

What enters is one decoded object of a batch; what leaves is a Span (or an event of one), the trace
that it names and facts about that trace. Invariant: what `otlp_genai` has not used stays among the
span's attributes and is counted.
"""

import base64
import binascii
from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Span

from .messages import name_of
from .otlp_genai import conversation_of, read_content
from .parsed import Rest
from .times import nanoseconds

_SPAN = frozenset(
    (
        "traceId", "spanId", "parentSpanId", "name", "startTimeUnixNano", "endTimeUnixNano",
        "attributes", "status", "events", "links", "flags", "kind",
    )
)  # fmt: skip
_LOG = frozenset(("traceId", "spanId", "attributes", "body", "timeUnixNano", "flags", "eventName",
                  "observedTimeUnixNano"))  # fmt: skip
_FAILED = (2, "2", "STATUS_CODE_ERROR")
_MOST_DEPTH = 32


def read_span(value: object, scope: dict[str, Any], rest: Rest) -> tuple[str, Span, dict[str, str]]:
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not a span")
    external = hex_id(value.get("traceId"), 16, "traceId")
    id = hex_id(value.get("spanId"), 8, "spanId")
    attributes = attributes_of(value.get("attributes"))
    events = _events(value.get("events"))
    content = read_content(str(value.get("name") or ""), attributes, events, rest)
    facts = conversation_of(attributes)
    for key, item in attributes.items():
        if key not in content.used:
            rest.put(f"attributes.{key}", item)
    kept = keep_events(content.events_left, rest)
    error = _failure(value.get("status"), events)
    parents = (
        [hex_id(value["parentSpanId"], 8, "parentSpanId")] if value.get("parentSpanId") else []
    )
    parents += _links(value.get("links"), external, rest)
    rest.put_others(value, _SPAN, "span")
    own = {key.removeprefix("attributes."): item for key, item in rest.take().items()}
    own.update(scope)
    own.update(kept)
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


def keep_events(events: list[dict[str, Any]], rest: Rest) -> dict[str, Any]:
    """Events that are no messages, as an attribute; each is counted under its name."""
    for event in events:
        rest.tally(f"events.{event['name']}")
    return {"events": rest.bounded(events)} if events else {}


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


def read_log(value: object, rest: Rest) -> tuple[tuple[str, str], dict[str, Any]]:
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not a log record")
    external = hex_id(value.get("traceId"), 16, "traceId")
    id = hex_id(value.get("spanId"), 8, "spanId")
    attributes = attributes_of(value.get("attributes"))
    name = value.get("eventName") or attributes.pop("event.name", None) or "log"
    body = any_value(value.get("body"))
    rest.put_others(value, _LOG, "log")
    for key in ("timeUnixNano", "observedTimeUnixNano"):
        if value.get(key):  # the first and the last are the span's, the others give the order
            rest.tally(f"logRecords.{key}")
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
        if kind in ("arrayValue", "kvlistValue"):
            items = held.get("values") if isinstance(held, dict) else None
            items = items if isinstance(items, list) else []
            if kind == "arrayValue":
                return [any_value(item, depth + 1) for item in items]
            return {
                item["key"]: any_value(item.get("value"), depth + 1)
                for item in items
                if isinstance(item, dict) and isinstance(item.get("key"), str)
            }
    return value or None

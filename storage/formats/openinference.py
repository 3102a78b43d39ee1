"""OpenInference spans outside OTLP: the SDK's ReadableSpan.to_json and Phoenix's span tables.

One span a row, its ids under `context`; tables have a column for each attribute, Phoenix's own
export nests them. All become the OTLP form and are read as such, so that one trace is the same
however it was exported.
"""

from typing import Any

from . import otlp
from .parsed import Context, Parsed

_NAMES = ("attributes.", "context.")
_TIMES = {"start_time": "startTimeUnixNano", "end_time": "endTimeUnixNano"}
_KNOWN = frozenset(
    (
        "name", "context", "kind", "span_kind", "parent_id", "start_time", "end_time", "status",
        "status_code", "status_message", "attributes", "events", "links", "resource",
        "instrumentation_scope",
    )
)  # fmt: skip


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict):
        return False
    if "context.span_id" in sample:
        return "context.trace_id" in sample
    place = sample.get("context")
    return isinstance(place, dict) and "span_id" in place and "start_time" in sample


def read(row: dict[str, Any], context: Context) -> Parsed:
    if "context.span_id" in row:
        row = _unfolded(row)
    place = row.get("context")
    place = place if isinstance(place, dict) else {}
    span = {
        "traceId": _id(place.get("trace_id")),
        "spanId": _id(place.get("span_id")),
        "name": row.get("name"),
        "kind": _kind(row.get("kind")),
        "attributes": _attributes(row),
        "status": _status(row),
        "events": [_event(one) for one in _list(row.get("events"))],
        "links": [_link(one) for one in _list(row.get("links"))],
        **{ours: row.get(theirs) for theirs, ours in _TIMES.items()},
        **{key: row[key] for key in row.keys() - _KNOWN},
    }
    state = place.get("trace_state")
    if state not in (None, "[]", ""):
        span["traceState"] = state
    parent = _id(row.get("parent_id"))
    if parent:
        span["parentSpanId"] = parent
    resource = row.get("resource")
    scope = row.get("instrumentation_scope")
    group = {
        "resource": resource if isinstance(resource, dict) else {},
        "scopeSpans": [{"scope": scope if isinstance(scope, dict) else {}, "spans": [span]}],
    }
    return otlp.read({"resourceSpans": [group]}, context)


def _unfolded(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table: its dotted columns gathered again."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        name = next((one for one in _NAMES if key.startswith(one)), None)
        if name is None:
            found[key] = value
        elif value is not None:
            found.setdefault(name[:-1], {})[key.removeprefix(name)] = value
    return found


def _attributes(row: dict[str, Any]) -> dict[str, Any]:
    held = row.get("attributes")
    found: dict[str, Any] = {}
    if isinstance(held, dict):
        for key, value in held.items():
            _flatten(str(key), value, found)
    # Phoenix keeps the kind in a column of its own.
    if isinstance(row.get("span_kind"), str):
        found.setdefault("openinference.span.kind", row["span_kind"])
    return found


def _flatten(key: str, value: Any, found: dict[str, Any]) -> None:
    """Nested attributes by their dotted names; lists of objects by index, as OpenInference has."""
    if isinstance(value, dict) and value:
        for name, one in value.items():
            _flatten(f"{key}.{name}", one, found)
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for at, one in enumerate(value):
            _flatten(f"{key}.{at}", one, found)
    elif isinstance(value, float) and value.is_integer():
        found[key] = int(value)  # a table's column of counts with gaps
    elif value is not None:
        found[key] = value


def _status(row: dict[str, Any]) -> dict[str, Any]:
    said = row.get("status")
    if not isinstance(said, dict):
        said = {"status_code": row.get("status_code"), "description": row.get("status_message")}
    failed = said.get("status_code") == "ERROR"
    return {"code": 2 if failed else 1, "message": said.get("description") or ""}


def _event(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    time = value.get("timestamp", value.get("timeUnixNano"))
    return {
        "name": value.get("name"), "timeUnixNano": time, "attributes": value.get("attributes"),
    }  # fmt: skip


def _link(value: Any) -> Any:
    place = value.get("context") if isinstance(value, dict) else None
    if not isinstance(place, dict):
        return value
    return {
        "traceId": _id(place.get("trace_id")),
        "spanId": _id(place.get("span_id")),
        "attributes": value.get("attributes"),
    }


def _kind(value: object) -> object:
    """The SDK writes SpanKind.INTERNAL, the tables nothing."""
    said = str(value).removeprefix("SpanKind.")
    return None if said in ("INTERNAL", "None") else said


def _id(value: object) -> object:
    return value.removeprefix("0x") if isinstance(value, str) else value


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []

"""OTLP/JSON: export requests with resourceSpans or resourceLogs, one a document or a line.

Each span becomes a Span of the trace that it names, whatever file or batch it came in; the
committer joins the parts. The source is the sending service. Where messages are sent as log
records, they and the span that they name are parts of one span, in whatever file each comes.
Invariant: a span that cannot be understood is rejected alone, the batch stands.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from flywheel.errors import BadRecord
from flywheel.records import Span, Trace, trace_id
from storage.span_parts import part

from .messages import name_of
from .otlp_genai import read_content
from .otlp_span import attributes_of, keep_events, read_log, read_span
from .parsed import Context, Parsed, Rest

_GROUPS = frozenset(("resourceSpans", "resourceLogs"))
_INNER = {
    "resourceSpans": (("scopeSpans", "instrumentationLibrarySpans"), "spans"),
    "resourceLogs": (("scopeLogs", "instrumentationLibraryLogs"), "logRecords"),
}


def recognise(sample: object) -> bool:
    return isinstance(sample, dict) and any(isinstance(sample.get(key), list) for key in _GROUPS)


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    parsed = Parsed(unmapped=rest.counts)
    rest.put_others(row, _GROUPS, "")
    document = _Document(context, rest.take())
    for batch in _batches(row, "resourceSpans", rest, parsed):
        for at, value in enumerate(batch.values):
            try:
                external, span, facts = read_span(value, batch.scope, rest)
                document.add(batch.resource, external, _open(span), facts)
            except BadRecord as error:
                rest.take()
                parsed.rejects.append(_placed(error, f"{batch.path}[{at}]"))
    _read_logs(row, document, rest, parsed)
    parsed.traces.extend(document.traces())
    return parsed


class _Batch(NamedTuple):
    values: list[Any]
    resource: dict[str, Any]
    scope: dict[str, Any]
    """Attributes that each span of the batch gets."""
    path: str


class _Document:
    """The traces that one document tells of, by source and trace id."""

    def __init__(self, context: Context, common: dict[str, Any]) -> None:
        self.context, self.common = context, common
        self.found: dict[tuple[str, str], Trace] = {}
        self.spans: dict[tuple[str, str], list[Span]] = {}

    def add(
        self, resource: dict[str, Any], external: str, span: Span, facts: dict[str, str]
    ) -> None:
        service = resource.get("service.name")
        named = isinstance(service, str) and service and not service.startswith("unknown_service")
        source = f"import:{service}" if named else "import:otlp"
        attributes = {f"resource.{key}": value for key, value in resource.items()}
        key = (source, external)
        trace = self.found.get(key)
        if trace is None:
            trace = Trace(
                id=trace_id(self.context.project, source, external),
                project=self.context.project,
                source=source,
                external_id=external,
                origin="import",
                raw=self.context.raw,
                attributes={**self.common, **attributes},
            )
            self.spans[key] = []
        # A resource that is not the trace's first stands on its own spans.
        other = {name: one for name, one in attributes.items() if trace.attributes.get(name) != one}
        if other:
            span = msgspec.structs.replace(span, attributes={**span.attributes, **other})
        self.spans[key].append(span)
        news = {name: said for name, said in facts.items() if getattr(trace, name) is None}
        self.found[key] = msgspec.structs.replace(trace, **news) if news else trace

    def traces(self) -> Iterator[Trace]:
        for key, trace in self.found.items():
            yield msgspec.structs.replace(trace, spans=tuple(self.spans[key]))


def _placed(error: BadRecord, path: str) -> BadRecord:
    return BadRecord(error.reason, field=f"{path}.{error.field}" if error.field else path)


def _batches(row: dict[str, Any], outer: str, rest: Rest, parsed: Parsed) -> Iterator[_Batch]:
    """Each scope's list of spans (or log records), with what its resource and scope say."""
    middles, inner = _INNER[outer]
    groups = row.get(outer)
    for at, group in enumerate(groups if isinstance(groups, list) else ()):
        path = f"{outer}[{at}]"
        if not isinstance(group, dict):
            parsed.rejects.append(BadRecord(f"is {name_of(group)}, not an object", field=path))
            continue
        held = group.get("resource")
        resource = attributes_of(held.get("attributes") if isinstance(held, dict) else None)
        resource.update({key: group[key] for key in group.keys() - {"resource", *middles}})
        for key in resource.keys() - {"service.name"}:
            rest.tally(f"resource.{key}")
        middle = next((name for name in middles if name in group), middles[0])
        scopes = group.get(middle)
        for below, scope in enumerate(scopes if isinstance(scopes, list) else ()):
            where = f"{path}.{middle}[{below}]"
            values = scope.get(inner) if isinstance(scope, dict) else None
            if not isinstance(scope, dict) or not isinstance(values, list):
                parsed.rejects.append(BadRecord(f"has no list of {inner}", field=where))
                continue
            yield _Batch(values, resource, _scope(scope, inner, rest), f"{where}.{inner}")


def _scope(scope: dict[str, Any], inner: str, rest: Rest) -> dict[str, Any]:
    """What a scope says, as attributes of its spans: its name and version are one text."""
    said = scope.get("scope", scope.get("instrumentationLibrary"))
    found: dict[str, Any] = {}
    if isinstance(said, dict):
        name = "@".join(str(said[key]) for key in ("name", "version") if said.get(key))
        found = {"scope": name} if name else {}
        for key in said.keys() - {"name", "version"}:
            found[f"scope.{key}"] = attributes_of(said[key]) if key == "attributes" else said[key]
    for key in scope.keys() - {"scope", "instrumentationLibrary", inner}:
        found[f"scope.{key}"] = scope[key]
    for key in found.keys() - {"scope"}:
        rest.tally(key)
    return found


def _read_logs(row: dict[str, Any], document: _Document, rest: Rest, parsed: Parsed) -> None:
    """Log records of one span, in order, become one child span that holds its messages."""
    spoken: dict[tuple[str, str], list[dict[str, Any]]] = {}
    batches: dict[tuple[str, str], _Batch] = {}
    for batch in _batches(row, "resourceLogs", rest, parsed):
        for at, value in enumerate(batch.values):
            try:
                key, event = read_log(value, rest)
                spoken.setdefault(key, []).append(event)
                batches[key] = batch
            except BadRecord as error:
                parsed.rejects.append(_placed(error, f"{batch.path}[{at}]"))
    for key, events in spoken.items():
        external, parent = key
        events.sort(key=lambda event: event["time"] or 0)
        content = read_content("", {}, events, rest)
        kept = keep_events(content.events_left, rest)
        call = content.call
        span = Span(
            id=parent if call else f"{parent}:events",
            kind=content.kind,
            name="message events",
            parents=() if call else (parent,),
            start=events[0]["time"],
            end=events[-1]["time"],
            call=call,
            attributes={**rest.take(), **kept, **batches[key].scope},
        )
        if call is not None:
            known = ("kind", "name", "start", "end", "call.input", "call.choices")
            span = part(span, *known, *(("call.tools",) if call.tools is not None else ()))
        document.add(batches[key].resource, external, span, {})


_TOLD = ("kind", "name", "parents", "start", "end", "error")
_NOT_HEARD = ("input", "choices")


def _open(span: Span) -> Span:
    """A model's span without messages is a part: they may come as log records. What it says of
    times stands above what these do."""
    call = span.call
    if call is None or span.kind != "model" or call.input or call.choices:
        return span
    told = [name for name in _TOLD if getattr(span, name) not in (None, ())]
    for name in call.__struct_fields__:
        if name not in _NOT_HEARD and getattr(call, name) is not None:
            told.append(f"call.{name}")
    return part(span, *told, version=1)

"""Langfuse ingestion batches: {batch: [{type, timestamp, body}]}, what its SDKs send.

Observations are created and then updated, in any order: each event is a part of one span, whose
version is the event's time. Events of a trace say what the whole export would; scores are Feedback.
The source is that of Langfuse's exports, so that both join.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Feedback, Span, Trace, trace_id
from storage.span_parts import part

from .langfuse import SOURCE, read_observation, read_score
from .messages import name_of
from .parsed import Context, Parsed, Rest
from .times import nanoseconds
from .values import decoded

_OBSERVED = {
    "span": "SPAN", "generation": "GENERATION", "event": "EVENT", "agent": "AGENT",
    "tool": "TOOL", "chain": "CHAIN", "retriever": "RETRIEVER", "evaluator": "EVALUATOR",
    "embedding": "EMBEDDING", "guardrail": "GUARDRAIL",
}  # fmt: skip
_FIELDS: dict[str, tuple[str, ...]] = {
    "name": ("name",), "startTime": ("start",), "endTime": ("end",), "level": ("error",),
    "statusMessage": ("error",), "parentObservationId": ("parents",),
    "input": ("call.input", "call.tools", "tool"), "output": ("call.choices", "result"),
    "model": ("call.model", "call.response_model"), "modelParameters": ("call.sampling",),
    "usage": ("call.usage", "call.cost_usd"), "usageDetails": ("call.usage",),
    "costDetails": ("call.cost_usd",),
}  # fmt: skip
_TRACE = frozenset(("id", "userId", "sessionId", "metadata"))


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict) or not isinstance(sample.get("batch"), list):
        return False
    batch = sample["batch"]
    return all(isinstance(one, dict) and "type" in one and "body" in one for one in batch[:1])


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    parsed = Parsed(unmapped=rest.counts)
    rest.put_others(row, frozenset(("batch",)), "")
    common = rest.take()
    traces: dict[str, Trace] = {}
    spans: dict[str, list[Span]] = {}
    for at, event in enumerate(row["batch"]):
        try:
            _take_in(event, context, rest, traces, spans, parsed.feedback)
        except BadRecord as error:
            rest.take()
            place = f"batch[{at}].{error.field or ''}".rstrip(".")
            parsed.rejects.append(BadRecord(error.reason, field=place))
    for external in dict.fromkeys((*traces, *spans)):
        told = traces.get(external) or _trace(external, context)
        parsed.traces.append(
            Trace(
                id=told.id,
                project=told.project,
                source=SOURCE,
                external_id=external,
                origin="import",
                spans=tuple(spans.get(external, ())),
                conversation=told.conversation,
                user=told.user,
                raw=context.raw,
                attributes={**common, **told.attributes},
            )
        )
    return parsed


def _take_in(
    event: object,
    context: Context,
    rest: Rest,
    traces: dict[str, Trace],
    spans: dict[str, list[Span]],
    feedback: list[Feedback],
) -> None:
    if not isinstance(event, dict) or not isinstance(event.get("body"), dict):
        raise BadRecord(f"is {name_of(event)}, not an event with a body")
    kind, body = str(event.get("type")), event["body"]
    rest.tally("batch[].id")
    rest.tally("batch[].timestamp")
    subject = kind.partition("-")[0]
    if kind == "sdk-log":
        rest.tally("sdk-log")
    elif subject == "trace":
        external = _id(body.get("id"), "body.id")
        traces[external] = _told(external, body, context, rest)
    elif subject == "score":
        external = _id(body.get("traceId"), "body.traceId")
        said = read_score({"timestamp": event.get("timestamp"), **body}, _trace(external, context))
        if said is None:
            raise BadRecord("is no score", field="body")
        feedback.append(said)
    elif subject in _OBSERVED or subject == "observation":
        external = body.get("traceId")
        external = external if isinstance(external, str) and external else body.get("id")
        held = spans.setdefault(_id(external, "body.traceId"), [])
        held.append(_observed(subject, body, event, rest))
    else:
        raise BadRecord(f"is {kind!r}, not a known type of event", field="type")


def _trace(external: str, context: Context) -> Trace:
    return Trace(
        id=trace_id(context.project, SOURCE, external),
        project=context.project,
        source=SOURCE,
        external_id=external,
        origin="import",
        raw=context.raw,
    )


def _told(external: str, body: dict[str, Any], context: Context, rest: Rest) -> Trace:
    rest.put_others(body, _TRACE, "trace")
    rest.put("trace.metadata", decoded(body.get("metadata")))
    own = {key.removeprefix("trace."): one for key, one in rest.take().items()}
    session, user = body.get("sessionId"), body.get("userId")
    return Trace(
        id=trace_id(context.project, SOURCE, external),
        project=context.project,
        source=SOURCE,
        external_id=external,
        origin="import",
        conversation=session if isinstance(session, str) and session else None,
        user=user if isinstance(user, str) and user else None,
        attributes=own,
    )


def _observed(subject: str, body: dict[str, Any], event: dict[str, Any], rest: Rest) -> Span:
    kind = _OBSERVED.get(subject) or str(body.get("type") or "SPAN")
    used = body.get("usage")
    if isinstance(used, dict) and used.get("unit"):
        rest.put("usage.unit", used["unit"])
    span = read_observation(_exported(kind, body), rest)
    known = {"kind"}
    for key, names in _FIELDS.items():
        if body.get(key) is not None:
            known.update(names)
    if span.kind != "model":
        known = {name for name in known if not name.startswith("call.")}
    if span.kind != "tool":
        known -= {"tool", "result"}
    at = nanoseconds(event.get("timestamp")) or 0
    return part(span, *known, version=at // 1_000_000)


def _exported(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body as an export of the observation has it."""
    used = body.get("usage")
    used = used if isinstance(used, dict) else {}
    given = {key: one for key, one in used.items() if one is not None}
    cost = given.pop("totalCost", None)
    for key in ("unit", "inputCost", "outputCost"):
        given.pop(key, None)
    details = body.get("costDetails")
    if isinstance(details, dict) and details.get("total") is not None:
        cost = details["total"]
    others = {key: body[key] for key in body.keys() - {"usage"}}
    return {
        **others,
        "type": kind,
        "usageDetails": body.get("usageDetails") or given or None,
        "totalCost": cost,
    }


def _id(value: object, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadRecord(f"is {name_of(value)}, not an id", field=field)
    return value

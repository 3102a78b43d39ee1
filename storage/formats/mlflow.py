"""MLflow traces, {info, data: {spans}}, as Trace.to_json writes them, of both schemas.

Attribute values are JSON texts; a model's span holds its provider's request and response, a tool's
its arguments and result. Assessments become Feedback. Invariant: token counts are MLflow's own,
whose input counts what was cached; attributes that no field holds stay the span's.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import (
    Feedback,
    ModelCall,
    Span,
    SpanKind,
    ToolCall,
    ToolResult,
    Trace,
    trace_id,
)  # fmt: skip

from .calls import read_answered, read_asked, summed
from .feedback import kind_of
from .messages import answered, name_of
from .nested import nested
from .otlp_span import hex_id
from .parsed import Context, Parsed, Rest
from .parts import arguments_text
from .times import nanoseconds

SOURCE = "import:mlflow"

_KINDS: dict[str, SpanKind] = {
    "CHAT_MODEL": "model", "LLM": "model", "TOOL": "tool", "AGENT": "agent",
}  # fmt: skip
_USED = frozenset(
    (
        "mlflow.spanType", "mlflow.spanInputs", "mlflow.spanOutputs", "mlflow.traceRequestId",
        "mlflow.chat.tokenUsage", "mlflow.llm.cost", "mlflow.llm.model", "mlflow.chat.tools",
    )
)  # fmt: skip
_SPAN = frozenset(
    (
        "trace_id", "span_id", "parent_span_id", "parent_id", "name", "start_time_unix_nano",
        "end_time_unix_nano", "start_time", "end_time", "status", "status_code",
        "status_message", "attributes", "events", "context", "span_type", "inputs", "outputs",
    )
)  # fmt: skip
_INFO = frozenset(("trace_id", "request_id", "assessments", "trace_metadata", "request_metadata"))
_FAILED = ("STATUS_CODE_ERROR", "ERROR")


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict):
        return False
    info, data = sample.get("info"), sample.get("data")
    if not isinstance(info, dict) or not isinstance(data, dict):
        return False
    return isinstance(data.get("spans"), list) and ("trace_id" in info or "request_id" in info)


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    info, data = row["info"], row["data"]
    external = info.get("trace_id") or info.get("request_id")
    if not isinstance(external, str) or not external:
        raise BadRecord(f"is {name_of(external)}, not an id", field="info.trace_id")
    about = info.get("trace_metadata", info.get("request_metadata"))
    about = about if isinstance(about, dict) else {}
    rest.put_others(about, frozenset(("mlflow.trace.session", "mlflow.trace.user")), "metadata")
    rest.put_others(info, _INFO, "info")
    rest.put_others(data, frozenset(("spans", "request", "response")), "data")
    rest.put_others(row, frozenset(("info", "data")), "")
    own = rest.take()
    parsed = Parsed(unmapped=rest.counts)
    spans = []
    for at, value in enumerate(data["spans"]):
        try:
            spans.append(_span(value, rest))
        except BadRecord as error:
            rest.take()
            place = f"data.spans[{at}].{error.field or ''}".rstrip(".")
            parsed.rejects.append(BadRecord(error.reason, field=place))
    trace = Trace(
        id=trace_id(context.project, SOURCE, external),
        project=context.project,
        source=SOURCE,
        external_id=external,
        origin="import",
        spans=tuple(spans),
        conversation=_text(about.get("mlflow.trace.session")),
        user=_text(about.get("mlflow.trace.user")),
        raw=context.raw,
        attributes=own,
    )
    parsed.traces.append(trace)
    said = info.get("assessments")
    for at, value in enumerate(said if isinstance(said, list) else ()):
        one = _assessed(value, trace) if isinstance(value, dict) else None
        if one is None:
            parsed.rejects.append(BadRecord("is no assessment", field=f"info.assessments[{at}]"))
        else:
            parsed.feedback.append(one)
    return parsed


def _span(value: object, rest: Rest) -> Span:
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not a span")
    context = value.get("context")
    place = context if isinstance(context, dict) else value
    id = hex_id(_plain_id(place.get("span_id")), 8, "span_id")
    parent = value.get("parent_span_id", value.get("parent_id"))
    held = value.get("attributes")
    given = {key: _decoded(one) for key, one in held.items()} if isinstance(held, dict) else {}
    attributes = {key: one for key, one in given.items() if key not in _USED}
    kind = str(given.get("mlflow.spanType", value.get("span_type")))
    asked = given.get("mlflow.spanInputs", value.get("inputs"))
    gave = given.get("mlflow.spanOutputs", value.get("outputs"))
    call = tool = result = None
    ours = _KINDS.get(kind, "other")
    if ours == "model":
        call = _call(asked, gave, given, attributes, rest)
    elif ours == "tool":
        name = str(value.get("name") or "")
        tool = ToolCall(name=name, arguments=rest.shortened("input", arguments_text(asked)))
        if gave is not None:
            result = ToolResult(content=rest.shortened("output", arguments_text(gave)), name=name)
    else:
        rest.put("inputs", asked)
        rest.put("outputs", gave)
        if kind not in ("AGENT", "None", "UNKNOWN"):
            rest.put("span_type", kind)
    for key, one in attributes.items():
        rest.put(key, one)
    events = value.get("events")
    rest.put("events", events)
    rest.put_others(value, _SPAN, "")
    return Span(
        id=id,
        kind=ours,
        name=str(value.get("name") or ""),
        parents=(hex_id(_plain_id(parent), 8, "parent_span_id"),) if parent else (),
        start=nanoseconds(value.get("start_time_unix_nano", value.get("start_time"))),
        end=nanoseconds(value.get("end_time_unix_nano", value.get("end_time"))),
        error=_failure(value, events),
        call=call,
        tool=tool,
        result=result,
        attributes=rest.take(),
    )


def _call(
    asked: Any, gave: Any, given: dict[str, Any], attributes: dict[str, Any], rest: Rest
) -> ModelCall:
    request = read_asked(asked, rest)
    answer = read_answered(gave, rest)
    said = any(answered(choice.message) for choice in answer.choices)
    cost = given.get("mlflow.llm.cost")
    total = cost.get("total_cost") if isinstance(cost, dict) else None
    known = isinstance(total, int | float) and not isinstance(total, bool)
    model = _text(given.get("mlflow.llm.model"))
    for key in ("model", *(asked if isinstance(asked, dict) else ())):
        # Autologging repeats every setting of the request as an attribute.
        if key in attributes and isinstance(asked, dict) and attributes[key] == asked.get(key):
            del attributes[key]
    if answer.id:
        attributes["response_id"] = answer.id
    return ModelCall(
        input=request.messages,
        choices=answer.choices,
        tools=request.tools,
        model=request.model or model,
        response_model=answer.model or (model if answer.choices else None),
        sampling=request.sampling,
        usage=summed(given.get("mlflow.chat.tokenUsage"), said) or answer.usage,
        cost_usd=float(total) if known and total is not None else None,
    )


def _failure(value: dict[str, Any], events: object) -> str | None:
    status = value.get("status")
    code = status.get("code") if isinstance(status, dict) else value.get("status_code")
    if code not in _FAILED:
        return None
    said = status.get("message") if isinstance(status, dict) else value.get("status_message")
    for event in events if isinstance(events, list) else ():
        about = event.get("attributes") if isinstance(event, dict) else None
        if not said and isinstance(about, dict):
            said = about.get("exception.message")
    return str(said or "the span's status is error")


def _assessed(value: dict[str, Any], trace: Trace) -> Feedback | None:
    name = value.get("assessment_name", value.get("name"))
    if not isinstance(name, str) or not name:
        return None
    said, expected = value.get("feedback"), value.get("expectation")
    held = said if isinstance(said, dict) else expected
    if not isinstance(held, dict):
        return None
    answer = held.get("value")
    if "serialized_value" in held:
        inner = held["serialized_value"]
        answer = nested(inner.get("value") if isinstance(inner, dict) else inner)
    span = value.get("span_id")
    source = value.get("source")
    known = {"assessment_name", "name", "feedback", "expectation", "span_id", "trace_id",
             "create_time", "last_update_time"}  # fmt: skip
    others = {key: value[key] for key in value.keys() - known if value[key] not in (None, "", {})}
    if held.get("error"):
        others["error"] = held["error"]
    return Feedback(
        project=trace.project,
        target=hex_id(_plain_id(span), 8, "span_id") if span else trace.id,
        target_kind="span" if span else "trace",
        name=name,
        value=answer,
        kind="demonstration" if isinstance(expected, dict) else kind_of(answer),
        by=_text(source.get("source_id")) if isinstance(source, dict) else None,
        at=nanoseconds(value.get("last_update_time", value.get("create_time"))) or 0,
        attributes=others,
    )


def _plain_id(value: object) -> object:
    """An id without the 0x that the older schema writes before it."""
    return value.removeprefix("0x") if isinstance(value, str) else value


def _decoded(value: Any) -> Any:
    """Every attribute is JSON text, numbers and words too."""
    found = nested(value)
    if not isinstance(found, str) or found is not value:
        return found
    if value in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[value]
    try:
        return int(value)
    except ValueError:
        pass
    try:
        number = float(value)
    except ValueError:
        return value
    return number if number - number == 0 else value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

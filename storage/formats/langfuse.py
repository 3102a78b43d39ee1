"""Langfuse exports: {trace, observations} (or a trace that holds its observations), one a document.

Observations become spans, generations model calls; scores and corrections become Feedback. Inputs,
outputs and metadata come as values or as JSON text, sometimes twice encoded. Invariant: what
`values` cannot read as messages is kept whole as one Unknown part.
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
    Usage,
    trace_id,
)  # fmt: skip

from .feedback import kind_of
from .messages import answered, name_of, read_sampling
from .parsed import Context, Parsed, Rest
from .parts import arguments_text
from .times import nanoseconds
from .usage import count, settle
from .values import decoded, read_input, read_output

SOURCE = "import:langfuse"

_KINDS: dict[str, SpanKind] = {"GENERATION": "model", "TOOL": "tool", "AGENT": "agent"}
_TRACE = frozenset(("id", "sessionId", "userId", "scores", "corrections", "observations"))
_OBSERVATION = frozenset(
    (
        "id", "traceId", "parentObservationId", "type", "name", "startTime", "endTime", "level",
        "statusMessage", "model", "modelParameters", "input", "output", "updatedAt",
        "usageDetails", "inputUsage", "outputUsage", "totalUsage", "totalCost",
    )
)  # fmt: skip
_SCORE = frozenset(
    ("name", "value", "stringValue", "longStringValue", "dataType", "authorUserId", "timestamp",
     "observationId", "traceId")
)  # fmt: skip
_USAGE = {
    "given": ("input", "input_tokens", "prompt_tokens", "promptTokens"),
    "output": ("output", "output_tokens", "completion_tokens", "completionTokens"),
    "cached": ("input_cached_tokens", "input_cache_read", "cache_read_input_tokens",
               "prompt_details.cache_read", "cached_tokens"),
    "created": ("input_cache_creation", "cache_creation_input_tokens",
                "prompt_details.cache_write"),
    "reasoning": ("output_reasoning", "output_reasoning_tokens", "completion_details.reasoning",
                  "reasoning_tokens"),
    "total": ("total", "total_tokens", "totalTokens"),
}  # fmt: skip
_USAGE_KEYS = frozenset(key for keys in _USAGE.values() for key in keys)


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict):
        return False
    held = sample.get("trace")
    if isinstance(held, dict) and "observations" in sample:
        return True
    return isinstance(sample.get("observations"), list) and "id" in sample


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    head = row["trace"] if isinstance(row.get("trace"), dict) else row
    found = row.get("observations", head.get("observations"))
    if not isinstance(found, list):
        raise BadRecord(f"is {name_of(found)}, not a list", field="observations")
    external = head.get("id")
    if not isinstance(external, str) or not external:
        raise BadRecord(f"is {name_of(external)}, not an id", field="trace.id")
    if head is not row:
        rest.put_others(row, frozenset(("trace", "observations")), "")
    rest.put_others({**head, "metadata": decoded(head.get("metadata"))}, _TRACE, "trace")
    own = {key.removeprefix("trace."): value for key, value in rest.take().items()}
    parsed = Parsed(unmapped=rest.counts)
    spans = []
    for at, value in enumerate(found):
        try:
            spans.append(read_observation(value, rest))
        except BadRecord as error:
            field = f"observations[{at}].{error.field or ''}".rstrip(".")
            parsed.rejects.append(BadRecord(error.reason, field=field))
    trace = Trace(
        id=trace_id(context.project, SOURCE, external),
        project=context.project,
        source=SOURCE,
        external_id=external,
        origin="import",
        spans=tuple(spans),
        conversation=_text(head.get("sessionId")),
        user=_text(head.get("userId")),
        raw=context.raw,
        attributes=own,
    )
    parsed.traces.append(trace)
    for key in ("scores", "corrections"):
        values = head.get(key)
        for score in values if isinstance(values, list) else ():
            said = read_score(score, trace) if isinstance(score, dict) else None
            if said is None:
                parsed.rejects.append(BadRecord("is no score", field=f"trace.{key}"))
            else:
                parsed.feedback.append(said)
    return parsed


def read_observation(value: object, rest: Rest) -> Span:
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not an observation")
    id = value.get("id")
    if not isinstance(id, str) or not id:
        raise BadRecord(f"is {name_of(id)}, not an id", field="id")
    kind = _KINDS.get(str(value.get("type")), "other")
    given, gave = decoded(value.get("input")), decoded(value.get("output"))
    call = tool = result = None
    if kind == "model":
        call = _call(value, given, gave, rest)
    elif kind == "tool":
        name = str(value.get("name") or "")
        tool = ToolCall(name=name, arguments=rest.shortened("input", arguments_text(given)))
        if gave is not None:
            result = ToolResult(content=rest.shortened("output", arguments_text(gave)), name=name)
    else:
        rest.put("input", given)
        rest.put("output", gave)
        _put_usage(value, rest)
        rest.put("model", value.get("model"))
        rest.put("modelParameters", value.get("modelParameters"))
    others = {key: value[key] for key in value.keys() - _OBSERVATION if value[key] not in (None, 0)}
    if "metadata" in others:
        others["metadata"] = decoded(others["metadata"])
    rest.put_others(others, frozenset(), "observation")
    if value.get("type") not in ("GENERATION", "TOOL", "AGENT", "SPAN"):
        rest.put("observation.type", value.get("type"))
    own = {key.removeprefix("observation."): item for key, item in rest.take().items()}
    parent = _text(value.get("parentObservationId"))
    failed = value.get("level") == "ERROR"
    if not failed:
        for key in ("level", "statusMessage"):
            if value.get(key) not in (None, "DEFAULT", ""):
                own[key] = value[key]
    return Span(
        id=id,
        kind=kind,
        name=str(value.get("name") or ""),
        parents=(parent,) if parent else (),
        start=nanoseconds(value.get("startTime")),
        end=nanoseconds(value.get("endTime")),
        error=str(value.get("statusMessage") or "the observation's level is error")
        if failed
        else None,
        call=call,
        tool=tool,
        result=result,
        version=(nanoseconds(value.get("updatedAt")) or 0) // 1_000_000,
        attributes=own,
    )


def _call(value: dict[str, Any], given: Any, gave: Any, rest: Rest) -> ModelCall:
    messages, tools = read_input(given, rest)
    choices = read_output(gave, rest)
    parameters = value.get("modelParameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    longest = next((parameters[key] for key in ("max_tokens", "maxTokens", "max_completion_tokens")
                    if parameters.get(key) not in (None, -1)), None)  # fmt: skip
    asked = {
        "temperature": parameters.get("temperature"),
        "top_p": parameters.get("top_p", parameters.get("topP")),
        "top_k": parameters.get("top_k", parameters.get("topK")),
        "max_tokens": longest,
        "seed": parameters.get("seed") or None,
        "stop": parameters.get("stop"),
    }
    named = {"temperature", "top_p", "topP", "top_k", "topK", "max_tokens", "maxTokens",
             "max_completion_tokens", "seed", "stop"}  # fmt: skip
    others = {
        key: item
        for key, item in parameters.items()
        if item == -1 or (key not in named and item not in (None, "", [], {}))
    }
    cost = value.get("totalCost")
    known = isinstance(cost, int | float) and not isinstance(cost, bool) and cost > 0
    model = _text(value.get("model"))
    return ModelCall(
        input=messages,
        choices=choices,
        tools=tools,
        model=model,
        response_model=model,
        sampling=read_sampling(asked, others),
        usage=_usage(value, any(answered(choice.message) for choice in choices), rest),
        cost_usd=float(cost) if known and cost is not None else None,
    )


def _usage(value: dict[str, Any], said: bool, rest: Rest) -> Usage:
    details = value.get("usageDetails")
    details = details if isinstance(details, dict) else {}
    numbers = {
        name: next((count(details[key]) for key in keys if key in details), None)
        for name, keys in _USAGE.items()
    }
    if not details:
        numbers["given"] = count(value.get("inputUsage")) or None
        numbers["output"] = count(value.get("outputUsage")) or None
    usage = settle(numbers, answered=said)
    for key in details.keys() - _USAGE_KEYS:
        if details[key]:
            rest.put(f"usageDetails.{key}", details[key])
    total = numbers["total"]
    if total and total != (usage.input_tokens or 0) + (usage.output_tokens or 0):
        rest.put("usageDetails.total", total)
    return usage


def _put_usage(value: dict[str, Any], rest: Rest) -> None:
    """Usage of a span that is no model call: a sum over its children, kept as it came."""
    rest.put("usageDetails", value.get("usageDetails"))
    if value.get("totalCost"):
        rest.put("totalCost", value["totalCost"])


def read_score(score: dict[str, Any], trace: Trace) -> Feedback | None:
    name = score.get("name")
    if not isinstance(name, str) or not name:
        return None
    value, kind = score.get("value"), str(score.get("dataType") or "")
    if kind == "CORRECTION":
        value = score.get("longStringValue") or score.get("stringValue")
    elif kind in ("CATEGORICAL", "TEXT") and score.get("stringValue") is not None:
        value = score["stringValue"]
    elif kind == "BOOLEAN" and value in (0, 1):
        value = bool(value)
    kinds = {"CORRECTION": "demonstration", "CATEGORICAL": "category"}
    observation = _text(score.get("observationId"))
    others = {key: score[key] for key in score.keys() - _SCORE if score[key] not in (None, "", {})}
    return Feedback(
        project=trace.project,
        target=observation or trace.id,
        target_kind="span" if observation else "trace",
        name=name,
        value=value,
        kind=kinds.get(kind, kind_of(value)),  # type: ignore[arg-type]
        by=_text(score.get("authorUserId")) or _text(score.get("source")),
        at=nanoseconds(score.get("timestamp")) or 0,
        attributes=others,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

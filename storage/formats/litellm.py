"""LiteLLM: standard logging payloads and rows of the SpendLogs table, one call each.

Both hold the request's messages, the provider's response and what LiteLLM counted and priced. The
trace is the payload's trace id (SpendLogs' session), else the call. Invariant: counts and costs are
the response's, then LiteLLM's own; an answer from its cache costs nothing.
"""

from typing import Any

from flywheel.records import ModelCall, Sampling, Span, SpanKind, Trace, Usage, trace_id

from .calls import Answered, read_answered, read_asked
from .logged import identifier
from .messages import answered
from .nested import nested
from .parsed import Context, Parsed, Rest
from .times import nanoseconds
from .usage import count, settle

SOURCE = "import:litellm"

_KNOWN = frozenset(
    (
        "id", "request_id", "litellm_call_id", "trace_id", "litellm_trace_id", "session_id",
        "startTime", "endTime", "model", "messages", "response", "model_parameters",
        "response_cost", "spend", "total_tokens", "prompt_tokens", "completion_tokens",
        "cache_hit", "end_user", "user", "error_str", "status", "proxy_server_request", "tools",
    )
)  # fmt: skip
_NO_TEXT = ("embedding", "image", "speech", "transcription", "moderation", "rerank")
_EMPTY: tuple[Any, ...] = (None, "", {}, [], "{}")


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict) or "call_type" not in sample:
        return False
    return "startTime" in sample and ("spend" in sample or "response_cost" in sample)


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    id = identifier(row.get("id")) or identifier(row.get("request_id"))
    id = id or identifier(row.get("litellm_call_id")) or context.raw or ""
    external = (
        identifier(row.get("trace_id"))
        or identifier(row.get("litellm_trace_id"))
        or identifier(row.get("session_id"))
        or id
    )
    kind: SpanKind = "model"
    if any(one in str(row.get("call_type")) for one in _NO_TEXT):
        kind = "other"
    call = None
    if kind == "model":
        call = _call(row, rest)
    else:
        for key in ("messages", "response", "model", "total_tokens", "prompt_tokens"):
            rest.put(key, nested(row.get(key)))
    others = {key: one for key, one in row.items() if one not in _EMPTY}
    rest.put_others({**others, "metadata": nested(others.get("metadata"))}, _KNOWN, "")
    failed = row.get("status") == "failure"
    if row.get("status") not in (None, "success", "failure"):
        rest.put("status", row["status"])
    attributes = rest.take()
    trace = Trace(
        id=trace_id(context.project, SOURCE, external),
        project=context.project,
        source=SOURCE,
        external_id=external,
        origin="import",
        conversation=identifier(row.get("session_id")),
        user=identifier(row.get("end_user")) or identifier(row.get("user")),
        raw=context.raw,
        spans=(
            Span(
                id=id,
                kind=kind,
                name=str(row.get("call_type") or "chat"),
                start=nanoseconds(row.get("startTime")),
                end=nanoseconds(row.get("endTime")),
                error=_error(row) if failed else None,
                call=call,
                attributes=attributes,
            ),
        ),
    )
    return Parsed([trace], [], rest.counts)


def _call(row: dict[str, Any], rest: Rest) -> ModelCall:
    said = nested(row.get("messages"))
    proxied = nested(row.get("proxy_server_request"))
    parameters = nested(row.get("model_parameters"))
    request: dict[str, Any] = {}
    if isinstance(parameters, dict):
        request = {"model": row.get("model"), **parameters}
    if said in _EMPTY and isinstance(proxied, dict):
        request = {**proxied, **request}
    elif said not in _EMPTY:
        rest.put("proxy_server_request", proxied)
        if isinstance(said, dict) and "messages" in said:
            request.update(said)
        else:
            responses = "response" in str(row.get("call_type"))
            request["input" if isinstance(said, str) or responses else "messages"] = said
    asked = read_asked(request, rest) if request else None
    gave = nested(row.get("response"))
    answer = read_answered(gave, rest) if gave not in _EMPTY else Answered()
    cached = _yes(row.get("cache_hit"))
    cost = row.get("response_cost", row.get("spend"))
    known = isinstance(cost, int | float) and not isinstance(cost, bool) and bool(answer.choices)
    if answer.id and answer.id != row.get("id"):
        rest.attributes["response_id"] = answer.id
    return ModelCall(
        input=asked.messages if asked else (),
        choices=answer.choices,
        tools=asked.tools if asked else None,
        model=identifier(row.get("model")),
        response_model=answer.model,
        sampling=asked.sampling if asked else Sampling(),
        usage=_usage(row, answer),
        cost_usd=0.0 if cached else (float(cost) if known and cost is not None else None),
        cached=cached,
    )


def _usage(row: dict[str, Any], answer: Answered) -> Usage:
    if answer.usage.input_tokens is not None:
        return answer.usage
    counts = {
        "given": count(row.get("prompt_tokens")),
        "output": count(row.get("completion_tokens")),
        "total": count(row.get("total_tokens")),
    }
    if not counts["given"] and not counts["output"]:
        return answer.usage
    return settle(counts, answered=any(answered(one.message) for one in answer.choices))


def _error(row: dict[str, Any]) -> str:
    about = nested(row.get("error_information"))
    if not isinstance(about, dict):
        inner = nested(row.get("metadata"))
        about = inner.get("error_information") if isinstance(inner, dict) else None
    said = about.get("error_message") if isinstance(about, dict) else None
    return str(row.get("error_str") or said or "the call failed")


def _yes(value: object) -> bool | None:
    """SpendLogs holds "True", "False" or nothing."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).lower())

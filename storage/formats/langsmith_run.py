"""One LangSmith run, as its post or its patch tells it, as a part of a span.

What enters is the run; what leaves is its trace's id, the part, and facts about the trace. Streamed
tokens among its events only repeat the output: the first one's time is kept, the others are not.
"""

import re
from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import ModelCall, Span, SpanKind, ToolCall, ToolResult, Usage
from storage.span_parts import part

from .calls import Answered, Asked, read_answered, read_asked, sampling_of, summed
from .messages import answered, name_of
from .parsed import Rest
from .parts import arguments_text
from .times import nanoseconds
from .usage import count, settle

_KINDS: dict[str, SpanKind] = {"llm": "model", "chat": "model", "tool": "tool"}
_RUN = frozenset(
    (
        "id", "trace_id", "parent_run_id", "parent_run_ids", "dotted_order", "name", "run_type",
        "start_time", "end_time", "inputs", "outputs", "error", "events", "child_runs",
        "total_tokens", "prompt_tokens", "completion_tokens", "total_cost", "status",
        "first_token_time",
    )
)  # fmt: skip
_CONVERSATION = ("session_id", "thread_id", "conversation_id")
_last_run = re.compile(r"Z([0-9a-fA-F-]{36})$")


def run_id(run: dict[str, Any]) -> str | None:
    """The run's id; a patch may only have it at the end of its place in the tree."""
    id = run.get("id")
    if isinstance(id, str) and id:
        return id
    place = run.get("dotted_order")
    found = _last_run.search(place) if isinstance(place, str) else None
    return found.group(1) if found else None


def read_run(
    verb: str, run: dict[str, Any], kind: str | None, rest: Rest
) -> tuple[str, Span, dict[str, str]]:
    """
    Args:
        kind: the run's type, where another part of it said so.
    """
    id = run_id(run)
    if id is None:
        raise BadRecord(f"is {name_of(run.get('id'))}, not an id", field="id")
    external = run.get("trace_id")
    external = external if isinstance(external, str) and external else id
    kind = kind or _guessed(run)
    ours = _KINDS.get(kind or "", "other")
    name = str(run.get("name") or "")
    known = {field for key, field in (("name", "name"), ("error", "error"))
             if run.get(key) is not None}  # fmt: skip
    if kind is not None:
        known.add("kind")
    if verb == "post" or run.get("parent_run_id") is not None:
        known.add("parents")
    start, end = nanoseconds(run.get("start_time")), nanoseconds(run.get("end_time"))
    known |= {field for field, time in (("start", start), ("end", end)) if time is not None}
    call = tool = result = None
    if ours == "model":
        call, said = _call(run, rest)
        known |= said
    elif ours == "tool":
        tool, result = _tool(run, name, rest)
        known |= {field for field, one in (("tool", tool), ("result", result)) if one is not None}
    else:
        _put_step(run, kind, rest)
    _put_rest(run, rest)
    parent = run.get("parent_run_id")
    span = Span(
        id=id,
        kind=ours,
        name=name,
        parents=(parent,) if isinstance(parent, str) and parent else (),
        start=start,
        end=end,
        error=str(run["error"]) if run.get("error") is not None else None,
        call=call,
        tool=tool,
        result=result,
        attributes=rest.take(),
    )
    version = 0 if verb == "post" and end is None else (end or 10**6) // 10**6
    return external, part(span, *known, version=version), _facts(run)


def _put_step(run: dict[str, Any], kind: str | None, rest: Rest) -> None:
    """What a chain, a retriever, a parser was given and gave."""
    rest.put("inputs", run.get("inputs"))
    rest.put("outputs", run.get("outputs"))
    if kind not in (None, "chain"):
        rest.put("run_type", kind)


def _guessed(run: dict[str, Any]) -> str | None:
    """What a patch is of that does not say: a model's output is known by its form."""
    kind = run.get("run_type")
    if isinstance(kind, str):
        return kind
    gave = run.get("outputs")
    if isinstance(gave, dict) and {"choices", "generations", "usage_metadata"} & gave.keys():
        return "llm"
    return None


def _call(run: dict[str, Any], rest: Rest) -> tuple[ModelCall, set[str]]:
    inputs, outputs = run.get("inputs"), run.get("outputs")
    known: set[str] = set()
    asked, answer = Asked(), Answered()
    if inputs:
        asked = read_asked(inputs, rest)
        known |= {"call.input", "call.tools", "call.model", "call.sampling"}
    extra = run.get("extra")
    params = extra.get("invocation_params") if isinstance(extra, dict) else None
    if isinstance(params, dict) and inputs:
        others = {key: one for key, one in params.items() if key not in ("_type", "messages")}
        asked.sampling = sampling_of(others)
        if asked.model is None:
            model = params.get("model", params.get("model_name"))
            asked.model = model if isinstance(model, str) else None
        if asked.tools is None and isinstance(params.get("tools"), list):
            asked.tools = read_asked({"messages": [], "tools": params["tools"]}, rest).tools
    if outputs:
        answer = read_answered(outputs, rest)
        known |= {"call.choices", "call.response_model"}
        said = any(answered(choice.message) for choice in answer.choices)
        usage = summed(outputs.get("usage_metadata"), said) if isinstance(outputs, dict) else None
        usage = usage or (answer.usage if answer.usage.input_tokens is not None else None)
        usage = usage or _counted(run, said)
        if usage is not None:
            answer.usage = usage
            known.add("call.usage")
    cost = run.get("total_cost")
    priced = isinstance(cost, int | float) and not isinstance(cost, bool)
    if priced:
        known.add("call.cost_usd")
    if answer.id:
        rest.attributes["response_id"] = answer.id
    call = ModelCall(
        input=asked.messages,
        choices=answer.choices,
        tools=asked.tools,
        model=asked.model,
        response_model=answer.model,
        sampling=asked.sampling,
        usage=answer.usage,
        cost_usd=float(cost) if priced and cost is not None else None,
    )
    return call, known


def _counted(run: dict[str, Any], said: bool) -> Usage | None:
    """The counts that an exported run has of itself."""
    counts = {
        "given": count(run.get("prompt_tokens")),
        "output": count(run.get("completion_tokens")),
        "total": count(run.get("total_tokens")),
    }
    if not counts["given"] and not counts["output"]:
        return None
    return settle(counts, answered=said)


def _tool(run: dict[str, Any], name: str, rest: Rest) -> tuple[ToolCall | None, ToolResult | None]:
    inputs, outputs = run.get("inputs"), run.get("outputs")
    tool = result = None
    if inputs:
        if isinstance(inputs, dict) and inputs.keys() == {"input"}:
            inputs = inputs["input"]
        tool = ToolCall(name=name, arguments=rest.shortened("inputs", arguments_text(inputs)))
    if outputs:
        if isinstance(outputs, dict) and outputs.keys() == {"output"}:
            outputs = outputs["output"]
        text = rest.shortened("outputs", arguments_text(outputs))
        result = ToolResult(content=text, name=name or None)
    return tool, result


def _facts(run: dict[str, Any]) -> dict[str, str]:
    extra = run.get("extra")
    about = extra.get("metadata") if isinstance(extra, dict) else None
    if not isinstance(about, dict):
        return {}
    facts = {}
    for name, keys in (("conversation", _CONVERSATION), ("user", ("user_id",))):
        value = next((about[key] for key in keys if about.get(key)), None)
        if isinstance(value, str | int):
            facts[name] = str(value)
    return facts


def _put_rest(run: dict[str, Any], rest: Rest) -> None:
    rest.put_others(run, _RUN, "")
    rest.put("child_runs", run.get("child_runs"))
    rest.put("dotted_order", run.get("dotted_order"))
    if run.get("status") not in (None, "success", "error", "pending"):
        rest.put("status", run["status"])
    events = run.get("events")
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict) and event.get("name") == "new_token":
            rest.attributes.setdefault("first_token_time", event.get("time"))
            rest.tally("events")
        else:
            kept = rest.attributes.setdefault("events", [])
            kept.append(rest.bounded(event))
            rest.tally("events")
    if run.get("first_token_time") is not None:
        rest.attributes["first_token_time"] = run["first_token_time"]

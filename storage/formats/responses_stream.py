"""A streamed response of OpenAI's Responses API (its events in a list) as one response object.

The last event that holds the whole response decides; what it lacks, and a stream that was cut, is
put together from the items and their deltas. Invariant: a cut stream gives a response whose status
is not "completed", without usage.
"""

from typing import Any

from flywheel.errors import BadRecord

from .pieces import add, joined

_TEXTS = {
    "response.output_text.delta": ("content", "output_text", "text"),
    "response.refusal.delta": ("content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_text", "text"),
}
"""Deltas of an item's inner lists: the list, the kind of its elements, their text's key."""
_FIELDS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "arguments",
    "response.code_interpreter_call_code.delta": "code",
}


def merge_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """
    Raises:
        BadRecord: not one of them is a response's event.
    """
    response: dict[str, Any] = {}
    items: dict[int, dict[str, Any]] = {}
    done: set[int] = set()
    seen = False
    for event in events:
        kind = event.get("type")
        if not isinstance(kind, str):
            continue
        seen = seen or kind.startswith("response.")
        held = event.get("response")
        if isinstance(held, dict):
            known = {key: one for key, one in held.items() if one is not None}
            if not known.get("output"):
                known.pop("output", None)
            response.update(known)
        elif kind == "error":
            said = event.get("error")
            response["error"] = said if isinstance(said, dict) else _error(event)
        _merge_item(kind, event, items, done)
    if not seen and not response:
        raise BadRecord("holds no event of a response", field="response")
    if not response.get("output"):
        response["output"] = [joined(items[at]) for at in sorted(items)]
    return response


def _error(event: dict[str, Any]) -> dict[str, Any]:
    return {key: event[key] for key in ("message", "code", "param") if event.get(key)}


def _merge_item(
    kind: str, event: dict[str, Any], items: dict[int, dict[str, Any]], done: set[int]
) -> None:
    at = event.get("output_index")
    if not isinstance(at, int):
        return
    item = event.get("item")
    if isinstance(item, dict) and kind in (
        "response.output_item.added",
        "response.output_item.done",
    ):
        if at in done:
            return
        items[at] = {key: _copied(one) for key, one in item.items()}
        if kind == "response.output_item.done":
            done.add(at)
        return
    delta = event.get("delta")
    if at in done or not isinstance(delta, str):
        return
    target = items.setdefault(at, {"type": "message", "role": "assistant"})
    if kind in _FIELDS:
        add(target, _FIELDS[kind], delta)
    elif kind in _TEXTS:
        _append(target, *_TEXTS[kind], event, delta)


def _append(
    item: dict[str, Any], inner: str, kind: str, key: str, event: dict[str, Any], delta: str
) -> None:
    held = item.get(inner)
    if not isinstance(held, list):
        held = item[inner] = []
    at = event.get("content_index", event.get("summary_index"))
    place = at if isinstance(at, int) and 0 <= at <= len(held) else max(len(held) - 1, 0)
    if place == len(held):
        held.append({"type": kind, key: ""})
    part = held[place]
    if isinstance(part, dict):
        add(part, key, delta)


def _copied(value: Any) -> Any:
    return (
        [dict(one) if isinstance(one, dict) else one for one in value]
        if isinstance(value, list)
        else value
    )

"""A streamed message of Anthropic's API (its events in a list) as one message object.

Deltas find their block by its index. Invariant: a cut stream gives a message without a stop reason
and without a count of its output, for the first events only hold a guess of it.
"""

from typing import Any

from flywheel.errors import BadRecord

from .nested import nested
from .pieces import add, joined

_JOINED = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def merge_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """
    Raises:
        BadRecord: not one of them is a message's event.
    """
    message: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    counted = False
    for event in events:
        kind = event.get("type")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            message.update(event["message"])
            usage.update(_stated(event["message"].get("usage")))
        elif kind in ("content_block_start", "content_block_delta"):
            _merge_block(event, blocks)
        elif kind == "message_delta":
            delta = event.get("delta")
            message.update(_stated(delta))
            said = _stated(event.get("usage"))
            counted = counted or "output_tokens" in said
            usage.update(said)
            others = event.keys() - {"type", "delta", "usage"}
            message.update({key: event[key] for key in others if event[key] is not None})
        elif kind == "error":
            message["error"] = event.get("error") or event
    if not message and not blocks:
        raise BadRecord("holds no event of a message", field="response")
    if not counted:
        usage.pop("output_tokens", None)
    content = [joined(blocks[at]) for at in sorted(blocks)]
    for block in content:
        if "_json" in block:
            block["input"] = nested(block.pop("_json")) or {}
    message["content"] = content
    message["usage"] = usage or None
    return message


def _stated(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    return {key: one for key, one in value.items() if one is not None}


def _merge_block(event: dict[str, Any], blocks: dict[int, dict[str, Any]]) -> None:
    at = event.get("index")
    at = at if isinstance(at, int) else max(blocks, default=0)
    started = event.get("content_block")
    if isinstance(started, dict):
        blocks[at] = dict(started)
        return
    delta = event.get("delta")
    if not isinstance(delta, dict):
        return
    kind = str(delta.get("type"))
    block = blocks.setdefault(at, {"type": "thinking" if "think" in kind else "text"})
    if kind in _JOINED:
        key = _JOINED[kind]
        add(block, key, str(delta.get(key) or ""))
    elif kind == "input_json_delta":
        add(block, "_json", str(delta.get("partial_json") or ""))
    elif kind == "citations_delta":
        add(block, "citations", [delta.get("citation")])
    else:
        others = {key: one for key, one in delta.items() if key != "type"}
        block.update(others)

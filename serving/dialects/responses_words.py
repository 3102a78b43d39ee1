"""The objects of OpenAI's Responses: a response, its items and what they hold.

Enter blocks of an answer and the request; leave plain values. A response says again what it was
asked with, field by field, as the client wrote it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from flywheel.ids import new_ulid
from serving.answer import counted
from serving.capture import Asked
from serving.dialects.blocks import Block
from serving.dialects.responses_request import ResponsesChat

_SAID_AGAIN: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""With what they are where the client did not say."""
_NULL = Raw(b"null")
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PREFIXES = {"text": "msg", "refusal": "msg", "call": "fc", "thinking": "rs"}
Item = dict[str, Any]


def response(
    asked: Asked,
    items: list[Item],
    reason: str | None,
    usage: dict[str, Any] | None,
    more: dict[str, Any] | None = None,
    *,
    status: str | None = None,
    error: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Args:
        reason: the chat form's finish reason.
        more: fields of the answer that no protocol has.
        status: None = as the finish reason has it.
    """
    why = _INCOMPLETE.get(reason or "")
    chat = asked.chat
    assert isinstance(chat, ResponsesChat)
    again = {
        name: usual if (raw := chat.given.get(name, _NULL)) == _NULL else raw
        for name, usual in _SAID_AGAIN.items()
    }
    return {
        "id": asked.response_id,
        "object": "response",
        "created_at": asked.start // 10**9,
        "status": status or ("incomplete" if why else "completed"),
        "background": False,
        "error": error,
        "incomplete_details": {"reason": why} if why else None,
        "model": asked.answers,
        "output": items,
        **again,
        "store": False,
        "usage": usage_of(usage),
        **(more or {}),
    }


def usage_of(said: dict[str, Any] | None) -> dict[str, Any] | None:
    """None = the engine did not count."""
    prompt, completion = (counted(said, f"{side}_tokens") for side in ("prompt", "completion"))
    if prompt is None:
        return None
    details, spent = "prompt_tokens_details", "completion_tokens_details"
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": counted(said, details, "cached_tokens"),
            "cache_write_tokens": counted(said, details, "cache_write_tokens"),
        },
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": counted(said, spent, "reasoning_tokens")},
        "total_tokens": None if completion is None else prompt + completion,
    }


def output(response_id: str, blocks: Sequence[Block], logprobs: list[Any] | None) -> list[Item]:
    items = []
    for block in blocks:
        # They are of the whole answer; its text comes in one block.
        said = logprobs if block.kind == "text" else None
        items.append(item(response_id, block, "completed", said))
    return items


def item(
    response_id: str, block: Block, status: str, logprobs: Sequence[Any] | None = None
) -> Item:
    """`status` in_progress: as it begins, with nothing in it."""
    new = status == "in_progress"
    head = {"id": item_id(response_id, block), "status": status}
    if block.kind == "call":
        block.id = block.id or f"call_{new_ulid().lower()}"
        call = {"type": "function_call", "call_id": block.id, "name": block.name}
        return {**head, **call, "arguments": "" if new else block.text}
    content = [] if new else [part(block, block.text, logprobs)]
    if block.kind == "thinking":
        return {**head, "type": "reasoning", "summary": [], "content": content}
    return {**head, "type": "message", "role": "assistant", "content": content}


def part(block: Block, text: str, logprobs: Sequence[Any] | None = None) -> dict[str, Any]:
    if block.kind == "refusal":
        return {"type": "refusal", "refusal": text}
    if block.kind == "thinking":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def item_id(response_id: str, block: Block) -> str:
    return f"{_PREFIXES[block.kind]}_{response_id.partition('_')[2]}_{block.place}"


def message_left(blocks: Sequence[Block]) -> dict[str, Any]:
    """The answer as a message of the chat form, for what goes on from it."""
    texts = {
        kind: "".join(block.text for block in blocks if block.kind == kind)
        for kind in ("thinking", "text", "refusal")
    }
    message: dict[str, Any] = {"role": "assistant", "content": texts["text"] or None}
    if texts["thinking"]:
        message["reasoning_content"] = texts["thinking"]
    if texts["refusal"]:
        message["refusal"] = texts["refusal"]
    calls = [
        {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": b.text}}
        for b in blocks
        if b.kind == "call"
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


def event(kind: str, number: int, content: dict[str, Any]) -> bytes:
    data = msgspec.json.encode({"type": kind, "sequence_number": number, **content})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

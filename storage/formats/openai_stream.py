"""A streamed chat completion (server-sent events, or its chunks as a list) as one response object.

Deltas of parallel tool calls are told apart by their index, whatever order they come in and
however many of one index stand in one chunk. Invariant: a stream without a usage chunk gives a
response without usage, and one that was cut gives a choice without a finish reason.
"""

import re
from typing import Any

from flywheel.errors import BadRecord

from .nested import nested
from .pieces import add, joined

_breaks = re.compile(r"\r\n|\n|\r")
_JOINED = ("content", "refusal", "reasoning", "reasoning_content")


def read_events(text: str) -> list[dict[str, Any]]:
    """The chunks of a server-sent event stream; comments and [DONE] are left out."""
    chunks: list[dict[str, Any]] = []
    for line in _breaks.split(text):  # splitlines would also break at U+2028 inside a text
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if not data or data == "[DONE]":
            continue
        chunk = nested(data)
        if isinstance(chunk, str):
            break  # cut inside a chunk: what came before stands
        if isinstance(chunk, dict):
            chunks.append(chunk)
    return chunks


def merge_chunks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """One response object from the chunks of a stream.

    Raises:
        BadRecord: not one of them is a chat completion's chunk.
    """
    response: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for key, value in chunk.items():
            if key != "choices" and value not in (None, "", 0):
                response[key] = value
        found = chunk.get("choices")
        for choice in found if isinstance(found, list) else ():
            if isinstance(choice, dict):
                index = choice.get("index")
                at = index if isinstance(index, int) else 0
                _merge_choice(choices.setdefault(at, {"index": at, "message": {}}), choice)
    if not response and not choices:
        raise BadRecord("holds no chunk of a chat completion", field="response")
    for choice in choices.values():
        calls = choice["message"].get("tool_calls")
        if calls is not None:
            choice["message"]["tool_calls"] = list(calls.values())
    response["choices"] = [joined(choices[at]) for at in sorted(choices)]
    response.pop("object", None)
    return response


def _merge_choice(merged: dict[str, Any], choice: dict[str, Any]) -> None:
    for key, value in choice.items():
        if key in ("delta", "message", "index") or value in (None, ""):
            continue
        if key == "logprobs" and isinstance(value, dict):
            if not isinstance(merged.get(key), dict):
                merged[key] = {}
            _join_logprobs(merged[key], value)
        elif key == "token_ids" and isinstance(value, list):
            add(merged, key, value)
        else:
            merged[key] = value
    delta = choice.get("delta") or choice.get("message")
    if not isinstance(delta, dict):
        return
    message = merged["message"]
    for key, value in delta.items():
        if key == "tool_calls":
            _merge_calls(message, value)
        elif key == "function_call" and isinstance(value, dict):
            _merge_function(_inner(message, "function_call"), value)
        elif (key in _JOINED and isinstance(value, str)) or isinstance(value, list):
            add(message, key, value)
        elif value is not None or key not in message:
            message[key] = value


def _merge_calls(message: dict[str, Any], deltas: object) -> None:
    calls: dict[object, dict[str, Any]] = message.setdefault("tool_calls", {})
    for delta in deltas if isinstance(deltas, list) else ():
        if not isinstance(delta, dict):
            continue
        index = delta.get("index")
        # Some servers leave the index out: then a new id begins a new call.
        named = str(delta.get("id") or "") or next(reversed(calls), 0)
        at = index if isinstance(index, int) else named
        call = calls.setdefault(at, {})
        for key, value in delta.items():
            if key == "function" and isinstance(value, dict):
                _merge_function(_inner(call, "function"), value)
            elif key != "index" and value not in (None, ""):
                call[key] = value
    if not calls:
        del message["tool_calls"]


def _inner(holder: dict[str, Any], key: str) -> dict[str, Any]:
    """The object under `key`, where pieces are put; what was no object gives way."""
    held = holder.get(key)
    if not isinstance(held, dict):
        held = holder[key] = {}
    return held


def _merge_function(function: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "arguments" and isinstance(value, str):
            add(function, key, value)
        elif value not in (None, ""):
            function[key] = value


def _join_logprobs(merged: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, list):
            add(merged, key, value)
        elif value is not None:
            merged[key] = value

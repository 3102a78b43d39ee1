"""OpenAI's stored completions: what its API lists and its dashboard exports, one row an answer.

An answer carries what was asked for beside it (messages, tools, temperature, metadata); a page of
them is {object: "list", data: […]}. Each is read as the exchange that it was, by its API's format.
"""

from typing import Any

from flywheel.errors import BadRecord

from . import openai_chat, openai_responses
from .messages import name_of
from .parsed import Context, Parsed
from .wire import STORED, api_of_response

_ASKED = frozenset(
    (
        "messages", "input_messages", "input", "tools", "tool_choice", "temperature", "top_p",
        "seed", "presence_penalty", "frequency_penalty", "response_format", "input_user",
        "metadata", "max_completion_tokens", "stop",
    )
)  # fmt: skip


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict) or "request" in sample:
        return False
    data = sample.get("data")
    if sample.get("object") == "list" and isinstance(data, list):
        return bool(data) and api_of_response(data[0]) in ("chat", "responses")
    if sample.get("object") == "chat.completion":
        return isinstance(sample.get("choices"), list) and not STORED.isdisjoint(sample)
    return sample.get("object") == "response" and "input" in sample


def read(row: dict[str, Any], context: Context) -> Parsed:
    if row.get("object") != "list":
        return _answer(row, context)
    parsed = Parsed()
    for at, one in enumerate(row["data"]):
        try:
            if not isinstance(one, dict) or api_of_response(one) is None:
                raise BadRecord(f"is {name_of(one)}, not a stored answer")
            found = _answer(one, context)
        except BadRecord as error:
            place = f"data[{at}].{error.field or ''}".rstrip(".")
            parsed.rejects.append(BadRecord(error.reason, field=place))
            continue
        parsed.traces += found.traces
        for path, times in found.unmapped.items():
            parsed.unmapped[path] = parsed.unmapped.get(path, 0) + times
    others = {key: row[key] for key in row.keys() - {"object", "data"} if row[key] is not None}
    for key in others:
        parsed.unmapped[key] = parsed.unmapped.get(key, 0) + 1
    return parsed


def _answer(row: dict[str, Any], context: Context) -> Parsed:
    if row.get("object") == "response":
        request = {key: row[key] for key in ("input", "metadata") if row.get(key)}
        response = {key: row[key] for key in row.keys() - request.keys()}
        return openai_responses.read({"request": request, "response": response}, context)
    asked = {key: row[key] for key in row.keys() & _ASKED if row[key] is not None}
    messages = asked.pop("messages", None) or asked.pop("input_messages", None)
    asked.pop("input_messages", None)
    if isinstance(messages, dict):  # a page of its own
        messages = messages.get("data")
    user = asked.pop("input_user", None)
    request = {"model": row.get("model"), **asked}
    if user is not None:
        request["user"] = user
    if isinstance(messages, list):
        request["messages"] = [_asked_message(one) for one in messages]
    elif messages is not None:
        request["messages"] = messages
    response = {key: row[key] for key in row.keys() - _ASKED}
    return openai_chat.read({"request": request, "response": response}, context)


def _asked_message(message: Any) -> Any:
    """A stored message's id is the answer's, with its number; it says nothing more."""
    if isinstance(message, dict) and message.get("role") != "tool":
        return {
            key: one for key, one in message.items() if key != "id" and one not in (None, [], {})
        } | {"content": message.get("content_parts") or message.get("content")}
    return message

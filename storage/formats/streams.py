"""Captured streams, one event a row: the rows of a file are put together to the answers they tell.

What enters is the list of a file's rows (chunks of chat completions, events of responses or of
Anthropic's messages); each answer in it is read by its API's format. Invariant: rows that are no
such event are rejected alone.
"""

from collections.abc import Iterator
from typing import Any

from flywheel.errors import BadRecord

from . import anthropic, openai_chat, openai_responses
from .parsed import Context, Parsed, Read
from .wire import Api

_LOOKED_AT = 4
_READERS: dict[Api, Read] = {
    "chat": openai_chat.read,
    "responses": openai_responses.read,
    "anthropic": anthropic.read,
}
_EVENTS = ("message_", "content_block_", "ping")


def recognise(sample: object) -> bool:
    return (
        isinstance(sample, list)
        and bool(sample)
        and all(_api(event) is not None for event in sample[:_LOOKED_AT])
    )


def read(rows: list[Any], context: Context) -> Parsed:
    parsed = Parsed()
    for at, row in enumerate(rows):
        if _api(row) is None:
            parsed.rejects.append(BadRecord("is no event of a stream", field=f"[{at}]"))
    for api, events in _answers([row for row in rows if _api(row) is not None]):
        try:
            one = _READERS[api]({"request": None, "response": events}, context)
        except BadRecord as error:
            parsed.rejects.append(error)
            continue
        parsed.traces += one.traces
        for path, times in one.unmapped.items():
            parsed.unmapped[path] = parsed.unmapped.get(path, 0) + times
    return parsed


def _api(event: object) -> Api | None:
    if not isinstance(event, dict):
        return None
    if event.get("object") == "chat.completion.chunk":
        return "chat"
    kind = event.get("type")
    if not isinstance(kind, str):
        return None
    if kind.startswith("response."):
        return "responses"
    if kind == "error" and "sequence_number" in event:
        return "responses"
    return "anthropic" if kind.startswith(_EVENTS) or kind == "error" else None


def _answers(events: list[dict[str, Any]]) -> Iterator[tuple[Api, list[dict[str, Any]]]]:
    """Events by the answer that they are of: a chunk names it, the others follow their start."""
    chunks: dict[object, list[dict[str, Any]]] = {}
    held: list[dict[str, Any]] = []
    last: Api | None = None
    for event in events:
        api = _api(event)
        if api == "chat":
            chunks.setdefault(str(event.get("id")), []).append(event)
            continue
        begins = event.get("type") in ("message_start", "response.created") or api != last
        if held and begins and last is not None:
            yield last, held
            held = []
        held.append(event)
        last = api
    if held and last is not None:
        yield last, held
    for found in chunks.values():
        yield "chat", found

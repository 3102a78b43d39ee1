"""Every leaf of a row, and whether what was read of the row holds it: for the test that nothing is
lost in silence.

A leaf is a text, number or truth at a dotted path. JSON inside texts is gone into, server-sent
events too; events in a list are named by their kind. Of what is told again and again (an item of a
stream, a part of a message) the last word is walked: it is what is to be held.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from flywheel.ids import digest_bytes
from flywheel.records import Trace
from storage.chunk import ChunkRead
from storage.formats.finish import finish_reason
from storage.formats.nested import nested
from storage.formats.otlp_span import any_value, attributes_of
from storage.formats.times import nanoseconds

LEFT_OUT: dict[str, str] = {
    r"(^|\.)(type|object|kind|from|run_type|dataType|spanType|span_kind|target_type|event)$": (
        "says what a thing is: the record's own kind, or the part's"
    ),
    r"openinference\.span\.kind$": "the span's kind",
    r"gen_ai\.completion\.\d+\.role$": "its answer is the assistant's; thinking is a part of it",
    r"generations\.message\.id$": "the class of LangChain's that was written out",
    r"~standard\.vendor$": "the library that a tool's parameters are written with",
    r"^(messages_display|example)$": "turns as one text: their reader has tests of its own",
    r"sequence_number$|obfuscation$": "a stream's own numbering and padding",
    r"^trajectory_format$|schema_version$|^(inspect_log\.)?version$": "the format's own name",
    r"partial_json$": "a piece of a call's arguments, which are whole in the call",
    r"^response\.message\.usage": "a stream's first count, which its last one replaces",
    r"output_item\.done|^response\.item\.encrypted": "an item of a stream, whole in its last event",
}
"""Paths whose values no record repeats, and why."""
_WORDS = {"STATUS_CODE_OK", "STATUS_CODE_ERROR", "UNSET", "OK", "ERROR", "success", "completed",
          "DEFAULT", "in_progress"}  # fmt: skip
"""States: what failed has the span's error."""
_EARLY = re.compile(r"response\.(created|queued|in_progress|output_item\.added|content_part\.added|"
                    r"reasoning_summary_part\.added)$")  # fmt: skip
_moment = re.compile(r"\d{4}-\d\d-\d\d[T ]")
_index = re.compile(r"\[\d*\]")
_left_out = re.compile("|".join(LEFT_OUT))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    value = opened(_plain(value))
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for item in _last_words(value):
            inner = item[1:] if _is_hook(item) else item
            yield from leaves(inner, _named(item, path))
    else:
        yield path, value


def _plain(value: Any) -> Any:
    """OTLP's lists of keys and typed values as what they say."""
    if isinstance(value, dict) and next(iter(value), "").endswith("Value") and len(value) == 1:
        return any_value(value)
    if isinstance(value, list) and value and all(
        isinstance(one, dict) and one.keys() == {"key", "value"} for one in value
    ):  # fmt: skip
        return attributes_of(value)
    return value


def opened(value: Any) -> Any:
    """JSON text as its value, server-sent events as the list of theirs."""
    for _ in range(3):
        if not isinstance(value, str):
            return value
        found = nested(value)
        if found is value:
            break
        value = found
    if isinstance(value, str) and re.match(r"(event|data|):", value):
        lines = [line[5:].strip() for line in value.splitlines() if line.startswith("data:")]
        return [nested(line) for line in lines if line != "[DONE]"]
    return value


def _named(item: Any, path: str) -> str:
    """An event's path has its kind in it."""
    if _is_hook(item):
        told = item[1] if len(item) > 1 and isinstance(item[1], dict) else {}
        event = told.get("event") if isinstance(told, dict) else None
        kind = f"{item[0]}.{event['type']}" if isinstance(event, dict) else item[0]
        return f"{path}.{kind}".lstrip(".")
    kind = item.get("event") if isinstance(item, dict) and path.endswith("events") else None
    return f"{path}.{kind}" if isinstance(kind, str) else path


def _is_hook(item: Any) -> bool:
    """[hook, given, made], [method, payload]: a call as it was recorded."""
    return (
        (isinstance(item, list) and len(item) > 1 and isinstance(item[0], str) and "." in item[0])
        or (isinstance(item, list) and item[:1] == ["event"])
    )  # fmt: skip


def _last_words(items: list[Any]) -> list[Any]:
    """Without what a later item tells anew."""
    kinds = {item.get("type") for item in items if isinstance(item, dict)}
    if "response.completed" in kinds or "response.incomplete" in kinds:
        return [one for one in items if not _EARLY.match(str(one.get("type")))]
    if "chat.completion.chunk" in {one.get("object") for one in items if isinstance(one, dict)}:
        whose = ("id", "created")  # which each chunk repeats
        return [{key: one[key] for key in one if one is items[-1] or key not in whose}
                for one in items]  # fmt: skip
    last: dict[Any, int] = {}
    for at, item in enumerate(items):
        if (thing := _thing(item)) is not None:
            last[thing] = at
    return [one for at, one in enumerate(items) if last.get(_thing(one), at) == at]


def _thing(item: Any) -> Any:
    """What an opencode event tells of, where it tells it anew."""
    if not isinstance(item, list) or len(item) < 2 or item[0] != "event":
        return None
    event = item[1]["event"]
    told = event.get("properties") or {}
    about = told.get("part") or told.get("info")
    again = event["type"].endswith(".updated") or event["type"] == "session.created"
    return about["id"] if again and isinstance(about, dict) and "id" in about else None


class Found:
    """What was read of a row."""

    def __init__(self, read: ChunkRead, kept: dict[str, bytes]) -> None:
        self.values: set[Any] = set()
        self.kept = kept
        self.unmapped = [
            f".{_index.sub('', path).removeprefix('event.')}.".replace(".samples.", ".sample.")
            for path in read.unmapped
        ]
        texts: set[str] = set()
        for value in _all([msgspec.json.decode(msgspec.json.encode(one)) for one in read.records]):
            if isinstance(value, str):
                texts.add(value)
            self.values.add(value)
        for record in read.records:
            self.values.update(_derived(record) if isinstance(record, Trace) else ())
        texts |= {data.decode("utf-8", "replace") for data in kept.values()}
        self.text = "\0".join(texts)
        self.bare = re.sub(r"\s+", "", self.text)

    def has(self, path: str, value: Any) -> bool:
        if value in (None, "") or value in self.values or _left_out.search(path):
            return True
        place = f".{path}.".replace(".samples.", ".sample.")
        if any(listed in place for listed in self.unmapped):
            return True
        if isinstance(value, bool):
            return False
        if isinstance(value, int | float):
            return str(value) in self.text or any(
                int(value * unit) in self.values or round(value * unit) in self.values
                for unit in (10**3, 10**6, 10**9)
            )
        if value.startswith(("attachment://", "tc://")):
            return True  # stands for a text that is walked where it is
        return value in _WORDS or self._has_text(value)

    def _has_text(self, value: str) -> bool:
        if value in self.text or re.sub(r"\s+|<(image|video|audio)>", "", value) in self.bare:
            return True
        if value.removeprefix("0x") in self.text or value.startswith("gen_ai."):
            return True
        if finish_reason(value) in self.values:
            return True
        try:
            if json.loads(value) in self.values:
                return True
        except (ValueError, TypeError):
            pass
        moment = nanoseconds(value) if _moment.match(value) or value.isdigit() else None
        if moment is not None and not {moment, moment // 10**6}.isdisjoint(self.values):
            return True
        try:
            data = base64.b64decode(value.rpartition("base64,")[2])
        except (binascii.Error, ValueError):
            return False
        return digest_bytes(data) in self.kept or data.hex() in self.text


def _all(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        found = opened(value)
        if found is not value:
            yield value
        if isinstance(found, dict):
            yield from found
            yield from _all(found.values())
        elif isinstance(found, list):
            yield from _all(found)
        else:
            yield found


def _derived(trace: Trace) -> Iterator[int | float]:
    """Numbers that follow from those held: sums of tokens, durations."""
    for span in trace.spans:
        if span.start is not None and span.end is not None:
            yield (span.end - span.start) // 10**6
        if span.call is not None:
            usage = span.call.usage
            given, gave = usage.input_tokens or 0, usage.output_tokens or 0
            for less in (0, usage.cached_input_tokens or 0, usage.cache_write_tokens or 0):
                yield given + gave - less
                yield given - less
            yield given - (usage.cached_input_tokens or 0) - (usage.cache_write_tokens or 0)
            yield gave - (usage.reasoning_tokens or 0)

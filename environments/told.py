"""What a recorded conversation says: the user's turns in it, and what its tools answered.

Enter: a recorded trace. Leave: its turns, each with its tools' results, ready to be asked for once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from flywheel.ids import canonical
from flywheel.records import Message, ModelCall, ToolCall, ToolResult, Trace, main_spans


class Diverged(Exception):
    """The record has nothing to answer with."""


class Asked(NamedTuple):
    """One of the user's turns: the call that began it, and what its tools said."""

    call: ModelCall
    told: tuple[tuple[ToolCall, ToolResult], ...]
    """In the order in which they were called."""
    open: bool
    """The record ends with calls that have no result: the model's may end so too."""


def turns_of(trace: Trace) -> list[Asked]:
    """The user's turns along the branch that the trace's last answer ends."""
    calls = [span.call for span in main_spans(trace) if span.call and span.call.choices]
    if not calls:
        return []
    last = calls[-1]
    path = [one for one in calls if one.input == last.input[: len(one.input)]]
    begins = [number for number, one in enumerate(path) if not _continues(one)] or [0]
    found = []
    for begin, end in zip(begins, [*begins[1:], len(path)], strict=True):
        said = path[end - 1]
        told = _told(said.input[len(path[begin].input) :])
        is_open = bool(said.choices[0].message.tool_calls) and end == len(path)
        if end < len(path):
            told = _told(path[end].input[len(path[begin].input) :])
        found.append(Asked(path[begin], told, is_open))
    return found


def _continues(call: ModelCall) -> bool:
    """Whether it goes on with what tools said."""
    return bool(call.input) and any(isinstance(one, ToolResult) for one in call.input[-1].parts)


def _told(messages: Sequence[Message]) -> tuple[tuple[ToolCall, ToolResult], ...]:
    """Tool calls with their results: by id, else in order."""
    found: list[tuple[ToolCall, ToolResult]] = []
    waiting: list[ToolCall] = []
    for message in messages:
        waiting += message.tool_calls
        for part in message.parts:
            if isinstance(part, ToolResult) and waiting:
                named = [one for one in waiting if part.id is not None and one.id == part.id]
                call = named[0] if named else waiting[0]
                waiting.remove(call)
                found.append((call, part))
    return tuple(found)


class Results:
    """What tools said, each once: a tool that is asked again may say something else by then."""

    def __init__(self, told: Sequence[tuple[ToolCall, ToolResult]]) -> None:
        self._left: dict[bytes, list[ToolResult]] = {}
        for call, result in told:
            self._left.setdefault(_key(call), []).append(result)

    @property
    def spent(self) -> bool:
        return not any(self._left.values())

    def take(self, call: ToolCall) -> ToolResult:
        """
        Raises:
            Diverged: the record has no (other) result of such a call.
        """
        left = self._left.get(_key(call))
        if not left:
            raise Diverged(f"no recorded result of {call.name}({call.arguments[:200]})")
        return msgspec.structs.replace(left.pop(0), id=call.id)


def _key(call: ToolCall) -> bytes:
    """Equal arguments are equal however they are spaced; what is no JSON is compared as text."""
    try:
        return canonical([call.name, msgspec.json.decode(call.arguments)])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return canonical([call.name, call.arguments])

"""Inputs longer than a model's window: taken apart, measured, told.

Invariant: the parts of a text, joined, are the text.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from flywheel.records import Message, Problem, Reasoning, Text, ToolCall, ToolResult

_BREAKS = ("\n\n", "\n", ". ", " ")


class Long(NamedTuple):
    """A prompt with one long text in it."""

    before: tuple[Message, ...]
    """System messages."""
    text: str
    question: str
    """What is asked about the text."""


def taken_apart(problem: Problem) -> Long:
    """The longest text of a user is the long one. What is asked about it is the problem's
    `attributes["question"]`, else the user's other words, else the text's last paragraph."""
    before = tuple(one for one in problem.messages if one.role in ("system", "developer"))
    texts = [
        part.text
        for message in problem.messages
        if message.role == "user"
        for part in message.parts
        if isinstance(part, Text)
    ]
    text = max(texts, key=len, default="")
    others = list(texts)
    if text in others:
        others.remove(text)
    asked = problem.attributes.get("question") or "\n".join(others)
    if not asked:
        head, gap, last = text.rstrip().rpartition("\n\n")
        if gap and len(last) < len(head):
            text, asked = head, last
    return Long(before, text, str(asked))


def split(text: str, size: int) -> list[str]:
    """Parts of at most `size` characters, broken where a paragraph, a line, a sentence or a word
    ends."""
    parts = []
    while len(text) > size:
        ends = (text.rfind(mark, 0, size) + len(mark) for mark in _BREAKS)
        at = next((end for end in ends if size // 2 < end <= size), size)
        parts.append(text[:at])
        text = text[at:]
    return [*parts, text] if text or not parts else parts


def size_of(messages: Sequence[Message]) -> int:
    """Characters that the model reads."""
    return sum(len(told) for message in messages for told in _told(message))


def transcript(messages: Sequence[Message]) -> str:
    """Messages as a text that a model can read about."""
    return "\n\n".join(f"{message.role}: " + "\n".join(_told(message)) for message in messages)


def _told(message: Message) -> list[str]:
    told = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            told.append(f"[calls {part.name} {part.arguments}]")
        elif isinstance(part, ToolResult):
            told.append(part.content)
        elif not isinstance(part, Reasoning):
            told.append(part.text if isinstance(part, Text) else f"[{msgspec.to_builtins(part)}]")
    return told

"""Which call a call goes on from: the calls of one episode as a tree of their messages.

Enter: a call's messages, and answers once they are whole. Leaves: the call whose messages and
answer are the longest beginning of the new one's. Invariant: messages are compared by what they
say: an assistant's reasoning, the ids of its calls and how its JSON is spaced may be lost on the
way through a harness; anything else that changed is another history.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from flywheel.ids import canonical
from flywheel.records import Message, Part, Reasoning, Text, Tokens, ToolCall, Unknown

_encode = msgspec.json.Encoder().encode


class Node(NamedTuple):
    """One answer, that a later call may extend."""

    span_id: str
    tools: bytes | None
    """`tools_key` of what was offered. None = its prompt was laid out in a way of its own."""
    tokens: Tokens | None


class Found(NamedTuple):
    parents: tuple[str, ...] = ()
    node: Node | None = None
    """What the call extends, message by message. None = its history is another."""
    new: int = 0
    """How many messages the node and its answer are; the rest are new."""


class Tree:
    def __init__(self) -> None:
        self._answered: dict[bytes, list[Node]] = {}
        """By the history up to the answer and with it."""
        self._asked: dict[bytes, str] = {}
        """By the history before the answer: the latest span."""
        self._messages: dict[bytes, Message] = {}

    def find(
        self,
        line: Sequence[bytes],
        messages: Sequence[Message],
        tools: bytes | None,
        said: Sequence[str] = (),
    ) -> Found:
        """
        Args:
            line: `line_of(messages)`.
            said: spans that the harness itself named as parents.
        """
        for length in range(len(line), 0, -1):
            new = length < len(line)
            if nodes := self._answered.get(line[length - 1]):
                node = max(
                    enumerate(nodes),
                    key=lambda one: (one[1].tools == tools, one[1].span_id in said, one[0]),
                )[1]
                parents = _once((*said, node.span_id))
                return Found(parents, node, length) if new else Found(parents)
            # An answer that comes back in other words: the call goes on from it, on a new branch.
            asked = self._asked.get(line[length - 1])
            if new and asked is not None and messages[length].role == "assistant":
                return Found(_once((*said, asked)))
        return Found(_once(said))

    def same(self, line: Sequence[bytes], messages: Sequence[Message]) -> tuple[Message, ...]:
        """`messages`, those of earlier calls as the same objects: a history is held once."""
        kept = [self._messages.setdefault(*each) for each in zip(line, messages, strict=True)]
        return tuple(old if old == new else new for old, new in zip(kept, messages, strict=True))

    def asked(self, line: Sequence[bytes], span_id: str) -> None:
        self._asked[line[-1]] = span_id

    def answered(self, line: Sequence[bytes], answer: Message, node: Node) -> None:
        whole = line_of((answer,), line[-1])[0]
        self._answered.setdefault(whole, []).append(node)


def line_of(messages: Sequence[Message], before: bytes = b"") -> list[bytes]:
    """Parallel to `messages`: the digest of the history up to each of them."""
    line = []
    for message in messages:
        before = blake2b(before + _encode(_essence(message)), digest_size=16).digest()
        line.append(before)
    return line


def tools_key(tools: Sequence[dict[str, Any]] | None) -> bytes:
    return blake2b(canonical(tools), digest_size=16).digest() if tools else b""


def _essence(message: Message) -> Any:
    if message.role != "assistant":
        return message
    texts: list[str] = []
    others: list[Part | tuple[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, ToolCall):
            others.append((part.name, _arguments(part.arguments)))
        elif not (isinstance(part, Reasoning) or _unknown_field(part)):
            others.append(part)
    return "assistant", message.name, "".join(texts), others


def _unknown_field(part: Part) -> bool:
    """OpenAI's clients send their own answers back with fields that nobody filled."""
    return isinstance(part, Unknown) and part.kind.startswith("message.")


def _arguments(written: str) -> Any:
    try:
        return canonical(msgspec.json.decode(written)).decode()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return written


def _once(spans: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(spans))

"""Which beginnings of a conversation end in an answer, by hash: so is known what a request goes on
from.

What enters are a request's messages; what leaves are keys. Clients send their own messages as they
did before; ours they send back in a form of theirs, so that an answer is compared by `form`.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from flywheel.records import Message, Part, Reasoning, Text, ToolCall, Unknown

_encoder = msgspec.json.Encoder()
LOOKED_AT = 64
"""Answers in a request's history that are looked for, the latest ones."""


class History(NamedTuple):
    answered: tuple[bytes, ...]
    """Keys of its beginnings that end in an answer, the longest first."""
    whole: blake2b
    """Hash of it all, to go on with."""


def history(scope: Sequence[str], messages: Sequence[Message]) -> History:
    """`scope`: within what histories are compared, the project and its caller."""
    said = blake2b(_encoder.encode(scope), digest_size=16)
    answered = []
    for message in messages:
        said.update(form(message))
        if message.role == "assistant":
            answered.append(said.digest())
    return History(tuple(answered[: -LOOKED_AT - 1 : -1]), said)


def following(said: blake2b, message: Message) -> bytes:
    """The key of a history and one message more."""
    more = said.copy()
    more.update(form(message))
    return more.digest()


def form(message: Message) -> bytes:
    """Of an answer: without reasoning, and without fields that only say that they are empty."""
    if message.role != "assistant":
        return _encoder.encode(message)
    others = [_part(part) for part in message.parts if not isinstance(part, Text | Reasoning)]
    said = (message.text.strip(), [one for one in others if one is not None])
    return _encoder.encode(said)


def _part(part: Part) -> Any:
    if isinstance(part, ToolCall):
        try:
            arguments = msgspec.json.decode(part.arguments)
        except msgspec.DecodeError:
            arguments = part.arguments
        return (part.id, part.name, msgspec.json.encode(arguments, order="deterministic").decode())
    if isinstance(part, Unknown) and part.kind.startswith("message."):
        return None
    return part

"""The sorting project's customers, for examples/support/days.py: the tests' three days."""

from collections.abc import Sequence
from typing import NamedTuple

from tests.sorting import traffic


class Message(NamedTuple):
    user: str
    conversation: str
    text: str
    truth: str


class Filed(NamedTuple):
    conversation: str
    value: str
    by: str


def messages(count: int, seed: int = 0) -> list[Message]:
    return [
        Message(ask.user, ask.conversation, ask.messages[-1].text, ask.answer)
        for ask in traffic.asks(count, seed)
    ]


def prompt(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Sort the digits."}, {"role": "user", "content": text}]


def filed(given: Sequence[Message]) -> list[Filed]:
    return [Filed(one.conversation, one.truth, "clerk") for one in given]


def right(message: Message, answer: str) -> bool:
    return answer == message.truth

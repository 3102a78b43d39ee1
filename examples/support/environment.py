"""A support inbox: file each customer's message under its queue, with its order number.

The model must answer one JSON object, such as {"queue": "delivery", "order": "A1234"}, with null
where the message names no order. What the agents did with a message is the truth.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from environments.define import Environment, metric, reward
from flywheel.records import Choice, Feedback, Message, Problem

QUEUES = ("delivery", "refund", "invoice", "login", "repair")
ORDER = re.compile(r"[A-Z]\d{4}")
PARTNER = re.compile(r"[\w ]+ passes this on:|\w+ wrote to [\w ]+:")


class Support(Environment):
    """Slices: messages that partners pass on, and the others with and without an order number."""

    @reward()
    def correct(self, answer: str, choice: Choice, problem: Problem) -> bool:
        return choice.finish_reason == "stop" and parsed(answer) == problem.answer

    @metric
    def valid_json(self, answer: str) -> bool:
        return parsed(answer) is not None

    @metric
    def queue_right(self, answer: str, problem: Problem) -> bool:
        return (parsed(answer) or {}).get("queue") == problem.answer["queue"]

    @metric
    def order_right(self, answer: str, problem: Problem) -> bool:
        return (parsed(answer) or {}).get("order", "") == problem.answer["order"]

    def truth(self, feedback: Feedback) -> Any:
        """What an agent did: {"queue", "order"}; anything else that people say is no truth."""
        return filed(feedback.value) if feedback.name == "filed" else None

    def corrected(self, feedback: Feedback) -> Any:
        """A reviewer writes the answer as the model should have: the same object, or its text."""
        value = feedback.value
        return parsed(value) if isinstance(value, str) else filed(value)

    def text(self, messages: Sequence[Message]) -> str:
        """What the customer wrote; the turns before it are the examples of every prompt."""
        return messages[-1].text

    def slice(self, problem: Problem) -> str:
        if PARTNER.match(problem.text):
            return "partner"
        return "with order" if ORDER.search(problem.text) else "without order"


def parsed(answer: str) -> dict[str, Any] | None:
    """The object that the answer is, whole; None = it is not one of ours."""
    try:
        return filed(json.loads(answer))
    except (ValueError, RecursionError):
        return None


def filed(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict) or set(value) != {"queue", "order"}:
        return None
    order = value["order"]
    fits = order is None or (isinstance(order, str) and ORDER.fullmatch(order))
    return value if value["queue"] in QUEUES and fits else None

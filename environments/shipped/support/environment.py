"""A support inbox: file each customer's message under its queue, with its order number.

The model must answer one JSON object, such as {"queue": "delivery", "order": "A1234"}, with null
where the message names no order. `Inbox` learns from traffic: what the agents did with a message is
the truth. `Support` has problems of its own, from the generator of scripted customers.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from environments.define import Environment
from environments.marks import metric, reward
from environments.shipped.support import customers
from environments.tasksets.contract import TaskSet
from flywheel.records import Choice, Feedback, Message, Problem, say

QUEUES = customers.QUEUES
ORDER = re.compile(r"[A-Z]\d{4}")
PARTNER = re.compile(r"[\w ]+ passes this on:|\w+ wrote to [\w ]+:")


class Inbox(Environment):
    """Messages of a project's own traffic, each filed under its queue with its order number.

    Slices: messages that partners pass on, and the others with and without an order number.
    """

    name = "support"

    @reward()
    def correct(self, answer: str, choice: Choice, problem: Problem) -> bool:
        return choice.finish_reason == "stop" and parsed(answer) == problem.answer

    @metric
    def valid_json(self, answer: str) -> bool:
        return parsed(answer) is not None

    @metric
    def queue_right(self, answer: str, problem: Problem) -> bool:
        return bool((parsed(answer) or {}).get("queue") == problem.answer["queue"])

    @metric
    def order_right(self, answer: str, problem: Problem) -> bool:
        return bool((parsed(answer) or {}).get("order", "") == problem.answer["order"])

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

    def wrong(self, problem: Problem) -> Sequence[str | list[Message]]:
        """The wrong queue, the wrong order, and the right object with a word beside it."""
        truth = problem.answer
        other = QUEUES[(QUEUES.index(truth["queue"]) + 1) % len(QUEUES)]
        order = None if truth["order"] else "A1000"
        return (
            json.dumps(truth | {"queue": other}),
            json.dumps(truth | {"order": order}),
            f"Here it is: {json.dumps(truth)}",
        )


class Support(Inbox):
    """Customers' messages, each filed under its queue with its order number.

    The customers are scripted; what partners pass on is never trained on.
    """

    name = "support"
    tasks = TaskSet(kind="made", limit=400, heldout_slices=("partner",))

    def made(self, tasks: TaskSet) -> Iterator[Problem]:
        return map(self._posed, customers.messages(tasks.limit or 400, tasks.seed))

    def _posed(self, sent: customers.Message) -> Problem:
        asked = tuple(say(one["role"], one["content"]) for one in customers.prompt(sent.text))
        return Problem(environment=self.name, messages=asked, answer=sent.truth, user=sent.user,
                       conversation=sent.conversation, truth_from="ground_truth")  # fmt: skip


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

"""The scripted customers of the support example, and the agents who file what they wrote.

Enter: a count and a seed. Leave: messages in the order they are sent, the truth of each, and what
the agents say later. Invariant: equal arguments give equal traffic, and the first n messages of a
longer traffic are the shorter one. Nothing here knows Flywheel; it is what a company would bring.
"""

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

INSTRUCTION = (
    "File the message under its queue: delivery, refund, invoice, login or repair. "
    "Give its order number or null."
)
EXAMPLES = (
    ("I want a refund for the table. (C7730)", '{"queue": "refund", "order": "C7730"}'),
    ("My login does not work.", '{"queue": "login", "order": null}'),
    (
        "Where is the delivery of my lamp? My order is A2041.",
        '{"queue": "delivery", "order": "A2041"}',
    ),
    ("There is a mistake on my invoice.", '{"queue": "invoice", "order": null}'),
)
"""Four answers that all prompts show; none is of the repair queue."""


def prompt(text: str) -> list[dict[str, str]]:
    """The messages that the company's program sends for one customer's `text`."""
    shown = [
        {"role": role, "content": content}
        for asked, answer in EXAMPLES
        for role, content in (("user", asked), ("assistant", answer))
    ]
    return [{"role": "system", "content": INSTRUCTION}, *shown, {"role": "user", "content": text}]


QUEUES = ("delivery", "refund", "invoice", "login", "repair")
ISSUES = {
    "delivery": (
        "The delivery of the {product} was promised for {day}.",
        "When is the delivery of the {product} to {city}?",
        "Can you change the delivery of the {product} to my office in {city}?",
        "I missed the delivery of the {product} on {day}.",
        "The delivery of my {product} to {city} is late.",
        "The courier left the {product} at a neighbour's house in {city}.",
    ),
    "refund": (
        "The {product} is too small for {city}, I want a refund.",
        "I sent the {product} back on {day} and wait for the refund.",
        "How do I get a refund for the {product} I bought on {day}?",
        "I want a refund of {amount} for the {product}.",
        "Is a refund possible for the {product} from {day}?",
        "I changed my mind about the {product} on {day}, please give me my money back.",
    ),
    "invoice": (
        "The invoice for the {product} says {amount}.",
        "Please send the invoice for the {product} to {city}.",
        "The name on the invoice for the {product} from {day} is wrong.",
        "I did not get an invoice over {amount} for the {product}.",
        "The invoice of {day} is missing the {product}.",
        "My card was charged {amount} two times for the {product}.",
    ),
    "login": (
        "My login does not work since {day}.",
        "The login does not work in {city}.",
        "My login was locked on {day}.",
        "My new login for {city} does not work.",
        "The login failed in {city} on {day}.",
        "Someone else has signed in as me from {city} on {day}.",
    ),
    "repair": (
        "The {product} needs a repair, it does not turn on since {day}.",
        "How long does the repair of the {product} in {city} take?",
        "Who does the repair of a {product} in {city}?",
        "Is {amount} the price for the repair of the {product}?",
        "I need a repair, the {product} fell down on {day}.",
        "The {product} makes a loud noise and switches itself off since {day}.",
    ),
}
"""Five ways in six name the queue; the sixth must be understood."""
FIELDS = {
    "product": ("desk lamp", "coffee maker", "speaker", "backpack", "office chair", "router",
                "camera", "heater", "vacuum cleaner", "smart watch", "printer", "bike light",
                "kettle", "tent", "mirror", "keyboard", "toaster", "sofa", "drill", "monitor"),
    "amount": ("18 euros", "$240", "59.90", "75 pounds", "$12.50", "310 euros"),
    "day": ("Monday", "Tuesday", "Thursday", "Friday", "May 3", "June 21", "August 9",
            "the 12th"),
    "city": ("Leeds", "Porto", "Graz", "Lyon", "Tampere", "Ghent", "Krakow", "Turin", "Bergen",
             "Malaga", "Bristol", "Split"),
    "name": ("Ana", "Jonas", "Mira", "Tom", "Leila", "Pavel", "Ruth", "Iris", "Omar", "Greta"),
    "company": ("Nordhaus", "Bluebay", "Kleinmarkt", "Talisman", "Orbit Retail"),
}  # fmt: skip
WITH_ORDER = (
    "{issue} My order is {order}.",
    "Order {order}: {issue}",
    "{issue} ({order})",
    "It is about {order}. {issue}",
    "{issue} The number on the box is {order}.",
)
PHRASINGS = {
    "plain": ("{body}",),
    "polite": ("Hello, {body}", "Dear team, {body}", "Good morning! {body}"),
    "hurried": ("{body} Please hurry.", "URGENT: {body}"),
    "story": ("I am a customer from {city}. {body}", "I like your shop. {body}"),
    "partner": ("{company} passes this on: {body}", "{name} wrote to {company}: {body}"),
}
"""Families of phrasings. "partner" has senders of its own and is never trained on."""
PARTNER_SHARE = 0.2
ORDER_SHARE = {"login": 0.0}
"""Who cannot log in names no order; of the others nine in ten do."""
OTHER_ORDER_SHARE = 0.9


class Message(NamedTuple):
    number: int
    user: str
    conversation: str
    """One message each."""
    text: str
    family: str
    truth: dict[str, Any]
    """What a perfect answer says."""


class Filed(NamedTuple):
    """What an agent did with a message, as it is posted to /v1/feedback."""

    conversation: str
    value: dict[str, Any]
    by: str


def messages(count: int, seed: int = 0, users: int = 80) -> list[Message]:
    """`count` messages; another seed gives other users, conversations and texts."""
    draw = random.Random(f"customers {seed}")
    return [_message(draw, number, seed, users) for number in range(count)]


def _message(draw: random.Random, number: int, seed: int, users: int) -> Message:
    partner = draw.random() < PARTNER_SHARE
    family = "partner" if partner else draw.choice([f for f in PHRASINGS if f != "partner"])
    queue = draw.choice(QUEUES)
    fields = {name: draw.choice(values) for name, values in FIELDS.items()}
    order = None
    body = draw.choice(ISSUES[queue]).format(**fields)
    if draw.random() < ORDER_SHARE.get(queue, OTHER_ORDER_SHARE):
        order = f"{draw.choice('ABCDEFGH')}{draw.randrange(1000, 10000)}"
        body = draw.choice(WITH_ORDER).format(issue=body, order=order)
    sender = f"partner-{draw.randrange(12)}" if partner else f"customer-{draw.randrange(users)}"
    return Message(
        number=number,
        user=f"{sender}-{seed}",
        conversation=f"ticket-{seed}-{number}",
        text=draw.choice(PHRASINGS[family]).format(body=body, **fields),
        family=family,
        truth={"queue": queue, "order": order},
    )


def filed(
    sent: Sequence[Message], *, missing: float = 0.15, wrong: float = 0.05, twice: float = 0.1
) -> list[Filed]:
    """What the agents did, later: nothing known of some messages, a mistake in some, some twice."""
    said: list[Filed] = []
    for message in sent:
        draw = random.Random(f"agents {message.conversation}")
        if draw.random() < missing:
            continue
        value = dict(message.truth)
        if draw.random() < wrong:
            value["queue"] = draw.choice([q for q in QUEUES if q != value["queue"]])
        one = Filed(message.conversation, value, f"agent-{draw.randrange(4)}")
        said += [one, one] if draw.random() < twice else [one]
    return said


def right(message: Message, answer: str) -> bool:
    """Whether a model's answer says all of the truth and nothing else."""
    try:
        return bool(json.loads(answer) == message.truth)
    except (ValueError, RecursionError):
        return False

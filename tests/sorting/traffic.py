"""Scripted traffic for the sorting project: who asks what, and what people say later.

Enter: a count and a seed. Leave: asks, feedback on them, and, for tests without a gateway, the
traces that it would have recorded. Invariant: equal arguments give equal traffic, and the first n
asks of a longer traffic are the shorter one.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from flywheel.records import (
    Choice,
    Feedback,
    Message,
    ModelCall,
    Span,
    Trace,
    Usage,
    say,
    trace_id,
)

LENGTHS = (3, 4, 5, 6)
USERS = 40


class Ask(NamedTuple):
    user: str
    conversation: str
    """One question each, so that feedback on it is on the question."""
    messages: tuple[Message, ...]
    answer: str
    """The truth."""


def asks(count: int, seed: int = 0, users: int = USERS) -> list[Ask]:
    """Users ask several times, and now and then what somebody asked before."""
    draw = random.Random(f"asks {seed}")
    made: list[Ask] = []
    for number in range(count):
        digits = [str(draw.randrange(10)) for _ in range(draw.choice(LENGTHS))]
        if made and draw.random() < 0.03:
            digits = made[-1].messages[1].text.split()
        made.append(
            Ask(
                user=f"user-{seed}-{draw.randrange(users)}",
                conversation=f"conversation-{seed}-{number}",
                messages=(say("system", "Sort the digits."), say("user", " ".join(digits))),
                answer=" ".join(sorted(digits)),
            )
        )
    return made


def feedback(
    project: str,
    given: Sequence[Ask],
    *,
    missing: float = 0.15,
    wrong: float = 0.05,
    twice: float = 0.1,
) -> list[Feedback]:
    """What people say: the right answer of most asks, some wrong, some said twice."""
    said: list[Feedback] = []
    for number, ask in enumerate(given):
        draw = random.Random(f"feedback {ask.conversation}")
        if draw.random() < missing:
            continue
        answer = ask.answer
        if draw.random() < wrong:
            answer = " ".join(sorted(answer.split(), reverse=True))
        one = Feedback(
            project=project,
            target=ask.conversation,
            target_kind="conversation",
            name="sorted",
            value=answer,
            kind="demonstration",
            by="clerk",
            at=1_700_000_000_000_000_000 + number,
        )
        said += [one, one] if draw.random() < twice else [one]
    return said


def recorded(project: str, given: Sequence[Ask], deployment: str) -> list[Trace]:
    """The traces of `given` as a gateway would have recorded them, without token ids; the model
    says the digits as they came."""
    traces = []
    for number, ask in enumerate(given):
        at = 1_700_000_000_000_000_000 + number * 1_000_000_000
        call = ModelCall(
            input=ask.messages,
            tools=(),
            choices=(
                Choice(message=say("assistant", ask.messages[-1].text), finish_reason="stop"),
            ),
            deployment=deployment,
            usage=Usage(reason="not recorded"),
        )
        span = Span(id="call", kind="model", start=at, end=at + 1_000_000, call=call)
        traces.append(
            Trace(
                id=trace_id(project, "gateway", ask.conversation),
                project=project,
                source="gateway",
                external_id=ask.conversation,
                origin="production",
                spans=(span,),
                conversation=ask.conversation,
                user=ask.user,
            )
        )
    return traces

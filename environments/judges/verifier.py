"""A learned judge: a small model that was trained to say whether an answer is good, in one token.

Enter: a conversation and the answer that it got. Leaves: how surely the answer is good. Training
(`trainer.algorithms.reward`) and asking build the same conversation, here. The score is

    r(x, y) = p(Yes | x, y, QUESTION) / (p(Yes | …) + p(No | …))

Zhang et al. 2024, "Generative Verifiers: Reward Modeling as Next-Token Prediction", arXiv
2408.15240, eq. 4, here over the two verdicts alone. Invariant: what the likeliest tokens do not
speak of is null with the reason.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from flywheel.records import Message, say

YES, NO = "Yes", "No"
QUESTION = f"Is the last answer a good one? Answer {YES} or {NO}."
"""Of single steps too: the last answer is then the step."""
LIKELIEST = 20
"""Tokens whose probabilities are asked for: what servers allow."""


def asked(messages: Sequence[Message], answer: Message) -> tuple[Message, ...]:
    """The conversation that the verdict ends."""
    return (*messages, answer, say("user", QUESTION))


def body(model: str, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The request of one verdict; `messages` as the endpoint takes them."""
    return {
        "model": model,
        "messages": list(messages),
        "max_tokens": 1,
        "temperature": 1.0,
        "logprobs": True,
        "top_logprobs": LIKELIEST,
    }


def score(likeliest: Iterable[tuple[str, float]]) -> float | str:
    """From the likeliest first tokens, as text and log-probability; text = why there is none.

    A token counts for the verdict that it begins: tokenizers may cut "Yes" into several. A verdict
    that is not among them counts as the least likely of them, which is the most that it can be: the
    score is then nearer to 0.5 than the truth.
    """
    mass = {YES: 0.0, NO: 0.0}
    told = [(text.strip(), math.exp(logprob)) for text, logprob in likeliest]
    if not told:
        return "the endpoint gives no `top_logprobs`: a verifier is read from them"
    for text, probability in told:
        for verdict in mass:
            if text and verdict.startswith(text):
                mass[verdict] += probability
    if not any(mass.values()):
        return f"its {len(told)} likeliest tokens lack {YES} and {NO}: was it trained to judge?"
    least = min(probability for _, probability in told)
    good, bad = (found or least for found in mass.values())
    return good / (good + bad)

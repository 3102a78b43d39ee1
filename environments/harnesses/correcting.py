"""Write, run, error, correct: what `Environment.check` says goes back until it says nothing.

Enter: a problem. Leave: in the trace a `check` span an answer, and in `attributes["attempts"]` how
many answers it took. What is wrong may be text, or parts with a picture of what came out.
"""

import time
from collections.abc import Sequence

import msgspec

from environments.harnesses.asking import Said, how, spoken
from environments.harnesses.calling import bounded
from environments.harnesses.contract import Correcting, Episode
from environments.harnesses.toolbox import Toolbox, shortened
from environments.harnesses.tools import until_answer
from flywheel.records import Image, Message, Part, Span, Text, ToolCall, ToolResult

PASSED = "passed"


class Correction:
    def __init__(self, config: Correcting) -> None:
        self.config = config

    async def run(self, episode: Episode) -> None:
        box = Toolbox(episode, episode.environment.tools(episode))
        messages = list(episode.problem.messages)
        for number in range(1, self.config.attempts + 1):
            said = await until_answer(episode, messages, box)
            messages[-1] = spoken(said.message)
            episode.notes["attempts"] = number
            wrong = await _wrong(episode, said)
            if wrong is None:
                episode.ended = how(said)
                return
            messages.append(Message(role="user", parts=wrong))
        episode.ended = "budget: attempts"


async def _wrong(episode: Episode, said: Said) -> tuple[Part, ...] | None:
    """What the model is told about its answer; the check is a span."""
    start, answer = time.time_ns(), said.message.text
    found = await bounded(
        episode.environment.check,
        {"episode": episode, "answer": answer},
        episode.budget.tool_s,
        episode.alone,
    )
    parts = None if found is None else _parts(found, episode.budget.tool_output)
    text = PASSED if parts is None else "".join(p.text for p in parts if isinstance(p, Text))
    span = Span(
        id=f"check-{len(episode.spans)}",
        kind="tool",
        name="check",
        parents=(said.span,),
        start=start,
        end=time.time_ns(),
        error=None if parts is None else text[:500] or "wrong",
        tool=ToolCall(name="check", arguments="{}"),
        result=ToolResult(content=text, name="check", is_error=parts is not None),
    )
    episode.spans.append(span)
    return parts


def _parts(found: str | Sequence[Part], limit: int) -> tuple[Part, ...]:
    if isinstance(found, str):
        return (Text(text=shortened(found, limit)),)
    for part in found:
        if not isinstance(part, Text | Image):
            raise TypeError(f"check() returned a {type(part).__name__}, not texts and images")
    return tuple(
        msgspec.structs.replace(part, text=shortened(part.text, limit))
        if isinstance(part, Text)
        else part
        for part in found
    )

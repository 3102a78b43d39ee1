"""How a harness asks the model: one call at the episode's own address, within its budget.

Enter: an episode and messages. Leaves: what the model said, and the recorded call's span.
Invariant: between any two calls the budget, the environment's stops and the watch for loops are
asked, so no harness that asks here goes on for ever. `Ended` is raised where an episode is over: an
outcome, not an error.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from environments.answers import Answer, answer_of, completion_of
from environments.endpoint import SPENT, CallFailed, complete
from environments.harnesses.calling import call_marked
from environments.harnesses.contract import Episode, EpisodeFailed
from flywheel.chat import body_of, to_chat
from flywheel.errors import BadRecord, EngineError
from flywheel.records import Choice, Message, ModelCall, Refusal, Span, Text, ToolCall, ToolResult

SPAN, PARENT = "x-flywheel-span", "x-flywheel-parent"
"""Headers: the recorded call's span, and the spans that a call is told to come from."""

ASIDE = {"aside": True}
"""Attributes of an agent span: what is asked right under it is no answer of the episode."""


class Ended(Exception):
    """The episode is over: `why`. A tool may raise it too."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Said(NamedTuple):
    message: Message
    """Each of its tool calls has an id of its own."""
    finish_reason: str | None
    span: str
    """The id of the recorded call."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.message.tool_calls


async def ask(
    episode: Episode,
    messages: Sequence[Message],
    *,
    tools: Sequence[dict[str, Any]] = (),
    parents: Sequence[str] = (),
) -> Said:
    """What the model answers to `messages`.

    Args:
        parents: spans that this call comes from, where its messages do not show it (sub-agents).

    Raises:
        Ended: the budget is used up, a stop said so, or the model says the same again and again.
        CallFailed: this call was refused; `too_long` = the prompt has no room in the window.
        EpisodeFailed: the engine cannot be used.
    """
    try:
        await _may_go_on(episode, messages)
    except Ended:
        await asyncio.sleep(0)  # a harness that swallows it can be stopped here by its wall time
        raise
    episode.turns += 1
    number, start = episode.turns, time.time_ns()
    error: str | None = None
    answer: Answer | None = None
    span = f"call-{number}"
    try:
        answer, span = await _asked(episode, messages, tools, parents, span)
    except (CallFailed, EpisodeFailed) as failed:
        error = str(failed)
        raise
    finally:
        call = ModelCall(
            input=tuple(messages),
            tools=tuple(tools),
            choices=answer.choices if answer else (),
            model=episode.access.model,
        )
        call = msgspec.structs.replace(call, usage=answer.usage) if answer else call
        met = Span(id=span, kind="model", parents=tuple(parents), start=start, end=time.time_ns(),
                   error=error, call=call)  # fmt: skip
        episode.calls.append(met)
    choice = _named(answer.choices[0], number)
    return Said(choice.message, choice.finish_reason, span)


async def _asked(
    episode: Episode,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]],
    parents: Sequence[str],
    span: str,
) -> tuple[Answer, str]:
    access = episode.access
    headers = {"authorization": f"Bearer {access.key}"}
    if parents:
        headers[PARENT] = ",".join(parents)
    asked: dict[str, Any] = {"model": access.model}
    try:
        asked["messages"] = to_chat(messages)
        body = body_of(asked | ({"tools": list(tools)} if tools else {}))
    except (BadRecord, TypeError) as error:
        raise CallFailed(0, f"the prompt cannot be sent: {error}") from error
    try:
        reply = await complete(episode.session, access.url, body, headers)
        answer = answer_of(completion_of(reply.data))
    except (EngineError, BadRecord) as error:
        raise EpisodeFailed(str(error)) from error
    except CallFailed as error:
        if error.code == SPENT:
            raise Ended("budget: turns") from error
        if error.status >= 500:
            raise EpisodeFailed(str(error)) from error
        raise
    if not answer.choices:
        raise EpisodeFailed(f"the engine at {access.url} answered without a choice")
    return answer, reply.headers.get(SPAN, span)


def _named(choice: Choice, turn: int) -> Choice:
    """Each tool call gets an id, where the engine gave none or one twice."""
    seen: set[str] = set()
    parts = []
    for number, part in enumerate(choice.message.parts):
        if isinstance(part, ToolCall):
            if part.id is None or part.id in seen:
                part = msgspec.structs.replace(part, id=f"call_{turn}_{number}")
            seen.add(str(part.id))
        parts.append(part)
    message = msgspec.structs.replace(choice.message, parts=tuple(parts))
    return msgspec.structs.replace(choice, message=message)


def how(said: Said) -> str:
    """How an episode ended whose last answer this is."""
    if said.finish_reason == "length":
        return "cut: the answer reached its bound of tokens"
    if any(isinstance(part, Refusal) for part in said.message.parts):
        return "refused"
    if said.finish_reason == "content_filter":
        return "refused: content filter"
    return "answered" if said.message.text.strip() or said.calls else "answered nothing"


# --- what ends an episode between two calls -----------------------------------------------------


async def _may_go_on(episode: Episode, messages: Sequence[Message]) -> None:
    budget = episode.budget
    if episode.turns >= budget.turns:
        raise Ended("budget: turns")
    if budget.tokens is not None and _spent(episode) >= budget.tokens:
        raise Ended("budget: tokens")
    if looping(messages, budget.loops):
        raise Ended("stopped: loop")
    if episode.calls:
        await ask_stops(episode)


async def ask_stops(episode: Episode) -> None:
    """
    Raises:
        Ended: one of the environment's stops says so.
    """
    for method in episode.environment.methods:
        if method.mark.kind == "stop":
            seconds = episode.environment.limit_s
            if await call_marked(episode, method.name, method.arguments, seconds):
                raise Ended(f"stopped: {method.name}")


def _spent(episode: Episode) -> int:
    return sum(span.call.usage.output_tokens or 0 for span in episode.calls if span.call)


def looping(messages: Sequence[Message], times: int) -> bool:
    """Whether the last `times` answers are one answer, and what tools said to it too."""
    heard: list[str] = []
    first: object = None
    found = 0
    for message in reversed(messages):
        if message.role != "assistant":
            heard += [part.content for part in message.parts if isinstance(part, ToolResult)]
            continue
        said = (message.text, [(call.name, call.arguments) for call in message.tool_calls], heard)
        if not found:
            first = said
        elif said != first:
            return False
        found, heard = found + 1, []
        if found == times:
            return True
    return False


def told(text: str, role: str = "user") -> Message:
    return Message(role=role, parts=(Text(text=text),))


def spoken(message: Message) -> Message:
    """An answer as part of a history: one of nothing is an empty text, which templates can show."""
    if message.text or message.tool_calls:
        return message
    return msgspec.structs.replace(message, parts=(*message.parts, Text(text="")))

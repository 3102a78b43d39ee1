"""A span's messages, in each convention that has been in use.

Read in this order, the first that holds messages wins: `gen_ai.input.messages` and its kin,
indexed `gen_ai.prompt.N.*` or `llm.input_messages.N.*`, message events, bare `gen_ai.prompt`.
Invariant: messages that cannot be understood stay among the attributes, and the span stands.
"""

from dataclasses import dataclass
from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Choice, Message

from .finish import finish_reason
from .messages import read_message, read_messages, read_tools
from .nested import nested
from .otlp_indexed import dialogue
from .parsed import Rest
from .parts import read_parts
from .usage import count

_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


@dataclass(slots=True)
class Spoken:
    """The messages of one call as one convention has them."""

    input: tuple[Message, ...] = ()
    choices: tuple[Choice, ...] = ()
    tools: tuple[dict[str, Any], ...] | None = None


def read_spoken(
    attributes: dict[str, Any], events: list[dict[str, Any]], rest: Rest, used: set[str]
) -> tuple[Spoken, list[dict[str, Any]]]:
    """What was said, and the events that are something else; adds to `used` the keys it read."""
    spoken, left = Spoken(), events
    for reader in (_structured, _indexed):
        spoken = _fill(spoken, reader(attributes, rest, used))
    if not (spoken.input or spoken.choices):
        found, left = _from_events(events, rest)
        spoken = _fill(spoken, found)
    if not (spoken.input or spoken.choices):
        spoken = _fill(spoken, _bare(attributes, rest, used))
    return spoken, left


def _fill(spoken: Spoken, found: Spoken | None) -> Spoken:
    if found is None:
        return spoken
    tools = spoken.tools if spoken.tools is not None else found.tools
    return Spoken(spoken.input or found.input, spoken.choices or found.choices, tools)


def _structured(attributes: dict[str, Any], rest: Rest, used: set[str]) -> Spoken | None:
    """`gen_ai.input.messages`, `gen_ai.output.messages`, `gen_ai.system_instructions`, tools."""
    spoken = Spoken()
    key = "gen_ai.input.messages"
    if key in attributes:
        try:
            spoken.input = read_messages(nested(attributes[key]), rest, key)
            used.add(key)
        except BadRecord:
            pass  # stays an attribute
    key = "gen_ai.system_instructions"
    if attributes.get(key):
        told = nested(attributes[key])
        parts = tuple(read_parts(told, rest, key))
        spoken.input = (Message(role="system", parts=parts), *spoken.input)
        used.add(key)
    key = "gen_ai.output.messages"
    if key in attributes:
        try:
            spoken.choices = _choices(nested(attributes[key]), rest, key)
            used.add(key)
        except BadRecord:
            pass  # stays an attribute
    for key in ("gen_ai.tool.definitions", "gen_ai.request.tools"):
        if key in attributes and spoken.tools is None:
            try:
                spoken.tools = read_tools(nested(attributes[key]), rest, key)
                used.add(key)
            except BadRecord:
                pass  # stays an attribute
    return spoken


def _choices(values: object, rest: Rest, path: str) -> tuple[Choice, ...]:
    if not isinstance(values, list):
        raise BadRecord("is no list of messages", field=path)
    return tuple(
        Choice(
            message=read_message(value, rest, f"{path}[{at}]"),
            finish_reason=finish_reason(value.get("finish_reason")),
        )
        for at, value in enumerate(values)
    )


def _indexed(attributes: dict[str, Any], rest: Rest, used: set[str]) -> Spoken | None:
    found = dialogue(attributes)
    if found is None:
        return None
    spoken = Spoken()
    try:
        spoken.input = read_messages(found.input, rest, "prompt")
        spoken.choices = _choices(found.output, rest, "completion")
        if found.tools:
            spoken.tools = read_tools(found.tools, rest, "tools")
    except BadRecord:
        return None  # all of it stays among the attributes
    used |= found.used
    return spoken


def _from_events(events: list[dict[str, Any]], rest: Rest) -> tuple[Spoken, list[dict[str, Any]]]:
    """Message events; returns those that are something else."""
    left: list[dict[str, Any]] = []
    messages: list[Message] = []
    choices: list[tuple[int, Choice]] = []
    spoken = Spoken()
    for event in events:
        name, body = event["name"], _body(event)
        try:
            if name in _EVENT_ROLES:
                said = {"role": _EVENT_ROLES[name], **body}
                messages.append(read_message(said, rest, name))
            elif name == "gen_ai.choice":
                choices.append(_choice_event(body, rest))
            elif name == "gen_ai.content.prompt":
                found = _bare(event["attributes"], rest, set())
                messages.extend(found.input)
            elif name == "gen_ai.content.completion":
                found = _bare(event["attributes"], rest, set())
                choices.extend(enumerate(found.choices, len(choices)))
            elif "gen_ai.input.messages" in event["attributes"]:
                found = _structured(event["attributes"], rest, set()) or Spoken()
                messages.extend(found.input)
                choices.extend(enumerate(found.choices, len(choices)))
                spoken.tools = found.tools
            else:
                left.append(event)
        except BadRecord:
            left.append(event)
    choices.sort(key=lambda pair: pair[0])
    spoken.input = tuple(messages)
    spoken.choices = tuple(choice for _, choice in choices)
    return spoken, left


_NOT_SAID = frozenset(("gen_ai.system", "gen_ai.provider.name", "event.name",
                       "gen_ai.message.index"))  # fmt: skip


def _body(event: dict[str, Any]) -> dict[str, Any]:
    body = event.get("body")
    if isinstance(body, dict):
        return body
    said = {
        key.removeprefix("gen_ai.event."): nested(value) if key != "content" else value
        for key, value in event["attributes"].items()
        if key not in _NOT_SAID
    }
    inner = said.pop("content", None) if "gen_ai.event.content" in event["attributes"] else None
    if isinstance(inner, dict):
        return inner
    return said if inner is None else {**said, "content": inner}


def _choice_event(body: dict[str, Any], rest: Rest) -> tuple[int, Choice]:
    message = body.get("message", body)
    if not isinstance(message, dict):
        message = {"content": message}
    said = {key: value for key, value in message.items() if key not in ("index", "finish_reason")}
    index = count(body.get("index"))
    choice = Choice(
        message=read_message({"role": "assistant", **said}, rest, "gen_ai.choice"),
        finish_reason=finish_reason(body.get("finish_reason")),
    )
    return (index or 0), choice


def _bare(attributes: dict[str, Any], rest: Rest, used: set[str]) -> Spoken:
    """`gen_ai.prompt` and `gen_ai.completion`: messages as JSON text, or plain text."""
    spoken = Spoken()
    for key, role in (("gen_ai.prompt", "user"), ("gen_ai.completion", "assistant")):
        value = attributes.get(key)
        if value is None:
            continue
        said = nested(value)
        if isinstance(said, dict) and isinstance(said.get("messages"), list):
            said = said["messages"]
        messages = said if isinstance(said, list) else [{"role": role, "content": said}]
        try:
            if role == "user":
                spoken.input = read_messages(messages, rest, key)
            else:
                spoken.choices = _choices(messages, rest, key)
            used.add(key)
        except BadRecord:
            pass  # stays an attribute
    return spoken

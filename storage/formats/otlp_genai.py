"""What a span's attributes and events say of a model or tool call, in each GenAI convention.

Read in this order, the first that holds messages wins: `gen_ai.input.messages` and its kin,
indexed `gen_ai.prompt.N.*`, OpenInference's `llm.input_messages.N.*`, message events, bare
`gen_ai.prompt`. What enters are decoded attributes; what leaves names the keys that it used.
Invariant: messages that cannot be understood stay among the attributes, and the span stands.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from flywheel.errors import BadRecord
from flywheel.records import (
    Choice, Message, ModelCall, Sampling, SpanKind, ToolCall, ToolResult, Usage,
)  # fmt: skip

from .messages import answered, read_message, read_messages, read_sampling, read_tools
from .otlp_indexed import dialogue
from .parsed import Rest
from .parts import arguments_text, read_parts
from .usage import count, settle

_MODEL = frozenset(("chat", "text_completion", "completion", "generate_content"))
_AGENT = frozenset(("invoke_agent", "create_agent", "invoke_workflow", "workflow", "agent"))
_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_CONVERSATION = ("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id",
                 "langfuse.session.id")  # fmt: skip
_USER = ("user.id", "enduser.id", "traceloop.association.properties.user_id", "langfuse.user.id")
_ASKED = {
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.stop_sequences": "stop",
}
_USAGE = {
    "given": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
    "output": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens",
               "llm.token_count.completion"),
    "cached": ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens",
               "gen_ai.usage.cached_tokens", "llm.token_count.prompt_details.cache_read"),
    "created": ("gen_ai.usage.cache_creation.input_tokens",
                "gen_ai.usage.cache_creation_input_tokens",
                "llm.token_count.prompt_details.cache_write"),
    "reasoning": ("gen_ai.usage.reasoning_tokens", "gen_ai.usage.reasoning.output_tokens",
                  "llm.token_count.completion_details.reasoning"),
    "total": ("gen_ai.usage.total_tokens", "llm.usage.total_tokens", "llm.token_count.total"),
}  # fmt: skip


@dataclass(slots=True)
class SpanContent:
    kind: SpanKind
    call: ModelCall | None = None
    tool: ToolCall | None = None
    result: ToolResult | None = None
    used: set[str] = field(default_factory=set)
    """Attribute keys that a record field now holds."""
    events_left: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Spoken:
    """The messages of one call as one convention has them."""

    input: tuple[Message, ...] = ()
    choices: tuple[Choice, ...] = ()
    tools: tuple[dict[str, Any], ...] | None = None


def conversation_of(attributes: dict[str, Any]) -> dict[str, str]:
    facts = {}
    for name, keys in (("conversation", _CONVERSATION), ("user", _USER)):
        value = next((attributes[key] for key in keys if attributes.get(key)), None)
        if value is not None:
            facts[name] = str(value)
    return facts


def read_content(
    name: str, attributes: dict[str, Any], events: list[dict[str, Any]], rest: Rest
) -> SpanContent:
    used: set[str] = {key for key in (*_CONVERSATION, *_USER) if key in attributes}
    kind = _kind(attributes)
    if kind == "tool":
        return _tool(name, attributes, events, used)
    spoken, left = Spoken(), events
    for reader in (_structured, _indexed):
        found = reader(attributes, rest, used)
        spoken = _fill(spoken, found)
    if not (spoken.input or spoken.choices):
        found, left = _from_events(events, rest)
        spoken = _fill(spoken, found)
    if not (spoken.input or spoken.choices):
        spoken = _fill(spoken, _bare(attributes, rest, used))
    if kind == "other" and (spoken.input or spoken.choices) and not _embedding(attributes):
        kind = "model"
    if kind != "model" and not (kind == "agent" and spoken.choices):
        return SpanContent(kind, used=used, events_left=left)
    call = _call(spoken, attributes, used)
    return SpanContent(kind, call=call, used=used, events_left=left)


def _embedding(attributes: dict[str, Any]) -> bool:
    return (
        attributes.get("gen_ai.operation.name") == "embeddings"
        or attributes.get("openinference.span.kind") == "EMBEDDING"
        or attributes.get("llm.request.type") == "embedding"
    )


def _kind(attributes: dict[str, Any]) -> SpanKind:
    operation = attributes.get("gen_ai.operation.name")
    inference = attributes.get("openinference.span.kind")
    loop = attributes.get("traceloop.span.kind")
    if _embedding(attributes):
        return "other"
    if operation == "execute_tool" or inference == "TOOL" or loop == "tool":
        return "tool"
    if operation in _AGENT or inference == "AGENT" or loop in ("workflow", "agent"):
        return "agent"
    if operation in _MODEL or inference == "LLM":
        return "model"
    if attributes.get("llm.request.type") in ("chat", "completion"):
        return "model"
    asked = "gen_ai.request.model" in attributes and operation is None
    return "model" if asked and "gen_ai.response.id" in attributes else "other"


def _fill(spoken: Spoken, found: Spoken | None) -> Spoken:
    if found is None:
        return spoken
    tools = spoken.tools if spoken.tools is not None else found.tools
    return Spoken(spoken.input or found.input, spoken.choices or found.choices, tools)


def _decoded(value: Any) -> Any:
    """JSON text as its value; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return value


def _structured(attributes: dict[str, Any], rest: Rest, used: set[str]) -> Spoken | None:
    """`gen_ai.input.messages`, `gen_ai.output.messages`, `gen_ai.system_instructions`, tools."""
    spoken = Spoken()
    key = "gen_ai.input.messages"
    if key in attributes:
        try:
            spoken.input = read_messages(_decoded(attributes[key]), rest, key)
            used.add(key)
        except BadRecord:
            pass  # stays an attribute
    key = "gen_ai.system_instructions"
    if attributes.get(key):
        told = _decoded(attributes[key])
        parts = tuple(read_parts(told, rest, key))
        spoken.input = (Message(role="system", parts=parts), *spoken.input)
        used.add(key)
    key = "gen_ai.output.messages"
    if key in attributes:
        try:
            spoken.choices = _choices(_decoded(attributes[key]), rest, key)
            used.add(key)
        except BadRecord:
            pass  # stays an attribute
    for key in ("gen_ai.tool.definitions", "gen_ai.request.tools"):
        if key in attributes and spoken.tools is None:
            try:
                spoken.tools = read_tools(_decoded(attributes[key]), rest, key)
                used.add(key)
            except BadRecord:
                pass  # stays an attribute
    return spoken


def _choices(values: object, rest: Rest, path: str) -> tuple[Choice, ...]:
    messages = read_messages(values, rest, path)
    assert isinstance(values, list)
    return tuple(
        Choice(message=message, finish_reason=_finish(value.get("finish_reason")))
        for message, value in zip(messages, values, strict=True)
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
        key.removeprefix("gen_ai.event."): _decoded(value) if key != "content" else value
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
        finish_reason=_finish(body.get("finish_reason")),
    )
    return (index or 0), choice


def _bare(attributes: dict[str, Any], rest: Rest, used: set[str]) -> Spoken:
    """`gen_ai.prompt` and `gen_ai.completion`: messages as JSON text, or plain text."""
    spoken = Spoken()
    for key, role in (("gen_ai.prompt", "user"), ("gen_ai.completion", "assistant")):
        value = attributes.get(key)
        if value is None:
            continue
        said = _decoded(value)
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


def _call(spoken: Spoken, attributes: dict[str, Any], used: set[str]) -> ModelCall:
    choices = spoken.choices
    reasons = attributes.get("gen_ai.response.finish_reasons")
    if reasons is None:
        reasons = attributes.get("llm.finish_reason")
    reasons = [reasons] if isinstance(reasons, str) else reasons
    if isinstance(reasons, list):
        used |= {"gen_ai.response.finish_reasons", "llm.finish_reason"}
        # What the response said stands above a translation of it beside the message.
        choices = tuple(
            Choice(
                message=choice.message,
                finish_reason=_finish(reasons[at] if at < len(reasons) else None)
                or choice.finish_reason,
            )
            for at, choice in enumerate(choices)
        )
    model = attributes.get("gen_ai.request.model", attributes.get("llm.request.model_name"))
    answered_by = attributes.get("gen_ai.response.model", attributes.get("llm.response.model_name"))
    if model is None and "llm.model_name" in attributes:
        model = attributes["llm.model_name"]
        used.add("llm.model_name")
    used |= {"gen_ai.request.model", "gen_ai.response.model", "llm.request.model_name",
             "llm.response.model_name", "gen_ai.operation.name"}  # fmt: skip
    return ModelCall(
        input=spoken.input,
        choices=choices,
        tools=spoken.tools,
        model=model if isinstance(model, str) else None,
        response_model=answered_by if isinstance(answered_by, str) else None,
        sampling=_sampling(attributes, used),
        usage=_usage(attributes, choices, used),
    )


def _finish(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _sampling(attributes: dict[str, Any], used: set[str]) -> Sampling:
    asked = {name: attributes[key] for key, name in _ASKED.items() if key in attributes}
    prefix = "gen_ai.request."
    others = {
        key.removeprefix(prefix): value
        for key, value in attributes.items()
        if key.startswith(prefix) and key not in _ASKED and key not in used
    }
    used.update(key for key in attributes if key.startswith(prefix))
    return read_sampling(asked, others)


def _usage(attributes: dict[str, Any], choices: tuple[Choice, ...], used: set[str]) -> Usage:
    numbers: dict[str, int | None] = {}
    for name, keys in _USAGE.items():
        numbers[name] = next((count(attributes[key]) for key in keys if key in attributes), None)
        if name != "total":
            used.update(key for key in keys if count(attributes.get(key)) is not None)
    usage = settle(**numbers, answered=any(answered(choice.message) for choice in choices))
    total = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    used.update(key for key in _USAGE["total"] if count(attributes.get(key)) == total)
    return usage


def _tool(
    name: str, attributes: dict[str, Any], events: list[dict[str, Any]], used: set[str]
) -> SpanContent:
    """A tool as it was run: its name, arguments and result."""
    names = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name")
    inputs = ("gen_ai.tool.call.arguments", "input.value", "traceloop.entity.input")
    outputs = ("gen_ai.tool.call.result", "output.value", "traceloop.entity.output")
    chosen = [
        next((key for key in keys if attributes.get(key) is not None), None)
        for keys in (names, inputs, outputs)
    ]
    used.update(key for key in chosen if key)
    used |= {"gen_ai.tool.call.id", "gen_ai.operation.name"}
    named, given, gave = (attributes.get(key) if key else None for key in chosen)
    id = attributes.get("gen_ai.tool.call.id")
    id = None if id is None else str(id)
    label = named if isinstance(named, str) else name
    call = ToolCall(name=label, arguments=arguments_text(given), id=id)
    result = None
    if gave is not None:
        result = ToolResult(content=arguments_text(gave), id=id, name=label)
    return SpanContent("tool", tool=call, result=result, used=used, events_left=events)



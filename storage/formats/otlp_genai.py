"""What a span's attributes and events say it was: a model call, a tool call, an agent's step.

What enters are decoded attributes and events, of GenAI's conventions, OpenLLMetry's or
OpenInference's; what leaves names the keys that a record field now holds. Invariant: an attribute
whose name is not in `used` stays an attribute of the span.
"""

from dataclasses import dataclass, field
from typing import Any

from flywheel.records import (
    Choice,
    ModelCall,
    Sampling,
    SpanKind,
    ToolCall,
    ToolResult,
    Usage,
)  # fmt: skip

from .calls import read_answered
from .finish import finish_reason
from .messages import answered, read_sampling
from .nested import nested
from .otlp_messages import Spoken, read_spoken
from .parsed import Rest
from .parts import arguments_text
from .usage import count, settle
from .wire import api_of_response

_KIND = ("gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind",
         "llm.request.type")  # fmt: skip
_SAID_BY_KIND = frozenset(("chat", "llm", "tool", "execute_tool", "agent", "invoke_agent"))
"""Values that say no more than the span's kind; others stay among the attributes."""
_MODEL = frozenset(("chat", "text_completion", "completion", "generate_content"))
_AGENT = frozenset(("invoke_agent", "create_agent", "invoke_workflow", "workflow", "agent"))
_CONVERSATION = ("gen_ai.conversation.id", "session.id",
                 "traceloop.association.properties.session_id",
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
    facts = conversation_of(attributes).values()
    used = {key for key in (*_CONVERSATION, *_USER) if str(attributes.get(key)) in facts}
    used |= {key for key in _KIND if str(attributes.get(key)).lower() in _SAID_BY_KIND}
    kind = _kind(attributes)
    if kind == "tool":
        return _tool(name, attributes, events, used, rest)
    heard: set[str] = set()
    spoken, left = read_spoken(attributes, events, rest, heard)
    if kind == "other" and (spoken.input or spoken.choices) and not _embedding(attributes):
        kind = "model"
    if kind != "model" and not (kind == "agent" and spoken.choices):
        return SpanContent(kind, used=used, events_left=events)
    used |= heard
    call = _call(spoken, attributes, used, rest)
    return SpanContent(kind, call=call, used=used, events_left=left)


def _embedding(attributes: dict[str, Any]) -> bool:
    return (
        attributes.get("gen_ai.operation.name") == "embeddings"
        or attributes.get("openinference.span.kind") == "EMBEDDING"
        or attributes.get("llm.request.type") == "embedding"
    )


def _kind(attributes: dict[str, Any]) -> SpanKind:
    operation, inference, loop, asked = (str(attributes.get(key)) for key in _KIND)
    if _embedding(attributes):
        return "other"
    if operation == "execute_tool" or inference == "TOOL" or loop == "tool":
        return "tool"
    if operation in _AGENT or inference == "AGENT" or loop in ("workflow", "agent"):
        return "agent"
    if operation in _MODEL or inference == "LLM":
        return "model"
    if asked in ("chat", "completion"):
        return "model"
    named = "gen_ai.request.model" in attributes and "gen_ai.response.id" in attributes
    return "model" if named and "gen_ai.operation.name" not in attributes else "other"


def _answers(attributes: dict[str, Any], rest: Rest) -> tuple[Choice, ...]:
    """The choices of the provider's own answer, which OpenInference keeps beside what it indexed:
    only there stands why each ended, and which messages are one answer."""
    value = attributes.get("output.value")
    if not isinstance(value, str) or not value.startswith("{"):
        return ()
    found = nested(value)
    if api_of_response(found) is None:
        return ()
    aside = Rest(rest.keep, rest.big)  # all of it stands among the attributes already
    return read_answered(found, aside).choices


def _call(spoken: Spoken, attributes: dict[str, Any], used: set[str], rest: Rest) -> ModelCall:
    choices = _answers(attributes, rest) or spoken.choices
    reasons = attributes.get("gen_ai.response.finish_reasons")
    if reasons is None:
        reasons = attributes.get("llm.finish_reason")
    reasons = [reasons] if isinstance(reasons, str) else reasons
    if isinstance(reasons, list) and (choices or not reasons):
        if all(finish_reason(one) in (one, None) for one in reasons):  # nothing is lost
            used |= {"gen_ai.response.finish_reasons", "llm.finish_reason"}
        # What the response said stands above a translation of it beside the message.
        choices = tuple(
            Choice(
                message=choice.message,
                finish_reason=finish_reason(reasons[at] if at < len(reasons) else None)
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
             "llm.response.model_name"}  # fmt: skip
    return ModelCall(
        input=spoken.input,
        choices=choices,
        tools=spoken.tools,
        model=model if isinstance(model, str) else None,
        response_model=answered_by if isinstance(answered_by, str) else None,
        sampling=_sampling(attributes, used),
        usage=_usage(attributes, choices, used),
    )


def _sampling(attributes: dict[str, Any], used: set[str]) -> Sampling:
    asked = {name: attributes[key] for key, name in _ASKED.items() if key in attributes}
    prefix = "gen_ai.request."
    others = {
        key.removeprefix(prefix): value
        for key, value in attributes.items()
        if key.startswith(prefix) and key not in _ASKED and key not in used
    }
    used.update(key for key in attributes if key.startswith(prefix))
    stated = nested(attributes.get("llm.invocation_parameters"))
    if isinstance(stated, dict) and not asked:  # OpenInference
        used.add("llm.invocation_parameters")
        longest = ("max_completion_tokens", "max_output_tokens", "max_tokens")
        known = ("temperature", "top_p", "top_k", "seed", "stop", "stop_sequences", *longest)
        others.update({key: one for key, one in stated.items() if key not in (*known, "model")})
        asked = {
            **stated,
            "max_tokens": next((stated[key] for key in longest if key in stated), None),
            "stop": stated.get("stop", stated.get("stop_sequences")),
        }
    return read_sampling(asked, others)


def _usage(attributes: dict[str, Any], choices: tuple[Choice, ...], used: set[str]) -> Usage:
    numbers: dict[str, int | None] = {}
    for name, keys in _USAGE.items():
        numbers[name] = next((count(attributes[key]) for key in keys if key in attributes), None)
        if name != "total":
            used.update(key for key in keys if count(attributes.get(key)) is not None)
    usage = settle(numbers, answered=any(answered(choice.message) for choice in choices))
    total = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    used.update(key for key in _USAGE["total"] if count(attributes.get(key)) == total)
    return usage


def _tool(
    name: str,
    attributes: dict[str, Any],
    events: list[dict[str, Any]],
    used: set[str],
    rest: Rest,
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
    used.add("gen_ai.tool.call.id")
    named, given, gave = (attributes.get(key) if key else None for key in chosen)
    id = attributes.get("gen_ai.tool.call.id")
    id = None if id is None else str(id)
    label = named if isinstance(named, str) else name
    call = ToolCall(name=label, arguments=rest.shortened("arguments", arguments_text(given)), id=id)
    result = None
    if gave is not None:
        result = ToolResult(
            content=rest.shortened("result", arguments_text(gave)), id=id, name=label
        )
    return SpanContent("tool", tool=call, result=result, used=used, events_left=events)

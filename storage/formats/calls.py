"""What a platform recorded of a model call, in the shape of any provider's API, as a call's fields.

What enters are the decoded input and output of one span; what leaves are messages, tools, sampling,
choices and usage. The API's own reader is used where one is recognised, `values` for the frameworks
around them. Invariant: what is none of them is kept whole.
"""

from dataclasses import dataclass, field
from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Choice, Message, Sampling, Usage

from .anthropic import read_dialogue, read_message
from .messages import answered, read_messages, read_sampling, read_tools
from .openai_chat import read_response
from .openai_responses import read_output
from .parsed import Rest
from .responses_items import read_items
from .usage import count, read_usage, settle
from .values import read_input
from .values import read_output as read_any_output
from .wire import api_of, api_of_response

_ASKED = frozenset(
    (
        "model", "messages", "input", "instructions", "system", "tools", "functions",
        "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens",
        "max_output_tokens", "seed", "stop", "stop_sequences", "prompt", "prompts", "contents",
        "config",
    )
)  # fmt: skip


_MOMENTS = ("created", "created_at", "completed_at")


@dataclass(slots=True)
class Asked:
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] | None = None
    model: str | None = None
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(slots=True)
class Answered:
    choices: tuple[Choice, ...] = ()
    usage: Usage = field(default_factory=lambda: Usage(reason="not reported"))
    model: str | None = None
    id: str | None = None


def read_asked(value: Any, rest: Rest) -> Asked:
    """The request of one call."""
    if not isinstance(value, dict):
        messages, tools = read_input(value, rest)
        return Asked(messages, tools)
    value = _listed(value)
    try:
        messages, tools = _dialogue(value, rest)
    except BadRecord:
        messages, tools = read_input(value, rest)
    if messages == () and tools is None and not value.keys() - {"model"}:
        return Asked()
    model = value.get("model")
    return Asked(messages, tools, model if isinstance(model, str) else None, sampling_of(value))


def sampling_of(value: dict[str, Any]) -> Sampling:
    """What a request asks for, by the names of every provider."""
    longest = (value.get(key) for key in ("max_completion_tokens", "max_output_tokens",
                                          "max_tokens"))  # fmt: skip
    asked = {
        **{key: value.get(key) for key in ("temperature", "top_p", "top_k", "seed")},
        "max_tokens": next((one for one in longest if one is not None), None),
        "stop": value.get("stop", value.get("stop_sequences")),
    }
    others = {key: value[key] for key in value.keys() - _ASKED if value[key] not in (None, {}, [])}
    return read_sampling(asked, others)


def read_answered(value: Any, rest: Rest) -> Answered:
    """The answer of one call."""
    api = api_of_response(value) if isinstance(value, dict) else None
    try:
        if api == "chat":
            choices, usage = read_response(_mended(value), rest, "output")
            found = Answered(choices, usage)
        elif api == "responses":
            choices, usage = read_output(value, rest, "output")
            found = Answered(choices, usage)
        elif api == "anthropic":
            found = _message(value, rest)
        else:
            found = _generated(value, rest)
    except BadRecord:
        found = Answered(read_any_output(value, rest))
    if isinstance(value, dict):
        for key in ("model", "id"):
            if isinstance(value.get(key), str):
                setattr(found, key, value[key])
        for key in _MOMENTS:  # by the provider's clock: the span has the platform's
            rest.put(f"output.{key}", value.get(key))
    return found


def summed(value: Any, said: bool) -> Usage | None:
    """Usage as LangChain and MLflow state it, totals that hold their parts; None = not stated."""
    if not isinstance(value, dict):
        return None
    inside = _details(value, "input_token_details")
    within = _details(value, "output_token_details")
    counts = {
        "given": count(value.get("input_tokens")),
        "output": count(value.get("output_tokens")),
        "cached": count(inside.get("cache_read", value.get("cache_read_input_tokens"))),
        "created": count(inside.get("cache_creation", value.get("cache_creation_input_tokens"))),
        "reasoning": count(within.get("reasoning")),
        "total": count(value.get("total_tokens")),
    }
    usage = settle(counts, answered=said)
    return usage if counts["given"] is not None or counts["output"] is not None else None


def _details(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _listed(value: dict[str, Any]) -> dict[str, Any]:
    """LangChain asks for several conversations at once: a list of lists, of one as a rule."""
    for key in ("messages", "prompts"):
        held = value.get(key)
        if isinstance(held, list) and len(held) == 1:
            if isinstance(held[0], list):
                return {**value, key: held[0]}
            if key == "prompts" and isinstance(held[0], str):
                others = {name: one for name, one in value.items() if name != key}
                return {**others, "messages": [{"role": "user", "content": held[0]}]}
    return value


def _dialogue(
    value: dict[str, Any], rest: Rest
) -> tuple[tuple[Message, ...], tuple[dict[str, Any], ...] | None]:
    """
    Raises:
        BadRecord: the request is of no API.
    """
    api = api_of({"request": value, "response": None})
    if api is None:
        raise BadRecord("is no request")
    offered = value.get("tools", value.get("functions"))
    # Where not even the model is named, only the conversation was kept of the request.
    recorded = offered is not None or "model" in value
    tools = read_tools(offered, rest, "input.tools") if recorded else None
    if api == "responses":
        told = value.get("instructions")
        first = (Message(role="system", parts=(rest.text(told),)),) if isinstance(told, str) else ()
        return (*first, *read_items(value["input"], rest, "input")), tools
    if api == "anthropic":
        return read_dialogue(value.get("system"), value["messages"], rest, "input"), tools
    return read_messages(value["messages"], rest, "input"), tools


def _mended(value: dict[str, Any]) -> dict[str, Any]:
    """LangSmith's JavaScript client wrote a stream's last choice in the place of its reason."""
    choices = [
        {**one, "finish_reason": one["finish_reason"].get("finish_reason")}
        if isinstance(one, dict) and isinstance(one.get("finish_reason"), dict)
        else one
        for one in value["choices"]
    ]
    return {**value, "choices": choices}


def _message(value: dict[str, Any], rest: Rest) -> Answered:
    choices, others = read_message(value, rest, "output")
    for key, one in others.items():
        if key not in ("usage_metadata",):
            rest.put(f"output.{key}", one)
    said = any(answered(choice.message) for choice in choices)
    return Answered(choices, read_usage(value.get("usage"), said, rest, "output.usage"))


def _generated(value: Any, rest: Rest) -> Answered:
    """LangChain's result of a model, {generations: [[…]], llm_output}; else any other form."""
    held = value.get("generations") if isinstance(value, dict) else None
    if not isinstance(held, list):
        return Answered(read_any_output(value, rest))
    flat = [one for group in held for one in (group if isinstance(group, list) else [group])]
    choices: list[Choice] = []
    usage: Usage | None = None
    for one in flat:
        if not isinstance(one, dict):
            raise BadRecord("is no generation")
        about = one.get("generation_info")
        about = about if isinstance(about, dict) else {}
        said = one.get("message") or {"role": "assistant", "content": one.get("text")}
        inner = said.get("kwargs", said) if isinstance(said, dict) else {}
        used = inner.get("usage_metadata") if isinstance(inner, dict) else None
        (choice,) = read_any_output({"message": said, **about}, rest)
        choices.append(choice)
        usage = usage or summed(used, answered(choice.message))
    overall = value.get("llm_output")
    overall = overall if isinstance(overall, dict) else {}
    if usage is None and overall.get("token_usage"):
        said_any = any(answered(one.message) for one in choices)
        usage = read_usage(overall["token_usage"], said_any, rest, "output.llm_output.token_usage")
    known = frozenset(("token_usage", "model_name"))
    rest.put_others(overall, known, "output.llm_output")
    rest.put_others(value, frozenset(("generations", "llm_output", "type")), "output")
    found = Answered(tuple(choices), usage or Usage(reason="not reported"))
    if isinstance(overall.get("model_name"), str):
        found.model = overall["model_name"]
    return found

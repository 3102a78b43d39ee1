"""Messages as an OpenAI-compatible server takes them, and its answers as records.

Enter: our messages, or the client's completion. Leave: plain dicts, or a Choice with the tokens
that were sampled. Invariant: token ids are the engine's own; none is ever made from text.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flywheel.errors import BadRecord
from flywheel.records import (
    Choice,
    Image,
    Message,
    Part,
    Reasoning,
    Refusal,
    Text,
    Tokens,
    ToolCall,
    ToolResult,
    Unknown,
    Usage,
)

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion


class Answer(NamedTuple):
    choices: tuple[Choice, ...]
    usage: Usage
    model: str | None
    notes: dict[str, Any]
    """Why something of the second stream is missing."""


def to_chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """
    Raises:
        BadRecord: a part that was not kept whole, so that the prompt cannot be sent again.
    """
    return [said for message in messages for said in _said(message)]


def _said(message: Message) -> list[dict[str, Any]]:
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    if results:
        answered = ((part, {"tool_call_id": part.id} if part.id else {}) for part in results)
        return [{"role": "tool", "content": part.content, **extra} for part, extra in answered]
    said: dict[str, Any] = {"role": message.role, "content": _content(message.parts)}
    if message.name:
        said["name"] = message.name
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id or f"call_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(message.tool_calls)
        ]
    refusals = [part.text for part in message.parts if isinstance(part, Refusal)]
    return [{**said, "refusal": refusals[0]} if refusals else said]


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]] | None:
    """None stays None; one text stays a string."""
    apart = (ToolCall, Reasoning, Refusal)
    shown = [_shown(part) for part in parts if not isinstance(part, apart)]
    if not shown:
        return None
    if len(shown) == 1 and shown[0]["type"] == "text":
        return str(shown[0]["text"])
    return shown


def _shown(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image) and part.url:
        return {"type": "image_url", "image_url": {"url": part.url}}
    raise BadRecord(f"a {type(part).__name__} part cannot be sent to a model again")


class Policy(NamedTuple):
    """Who sampled an answer, and how its engine puts messages into tokens."""

    name: str
    template_digest: str | None = None
    tokenizer_digest: str | None = None


def answer_of(completion: "ChatCompletion", policy: Policy) -> Answer:
    """What the engine answered, in the order of its choices; `policy` is who sampled it."""
    notes: dict[str, Any] = {}
    prompt_ids = (completion.model_extra or {}).get("prompt_token_ids")
    choices = tuple(
        Choice(
            message=_message(choice.message),
            finish_reason=choice.finish_reason or None,
            tokens=_tokens(choice, prompt_ids, policy, notes),
        )
        for choice in sorted(completion.choices or (), key=lambda choice: choice.index)
    )
    spoke = any(choice.message.parts for choice in choices)
    return Answer(choices, _usage(completion.usage, spoke), completion.model, notes)


def _message(said: Any) -> Message:
    parts: list[Part] = []
    reasoning = (said.model_extra or {}).get("reasoning_content")
    if reasoning:
        parts.append(Reasoning(text=reasoning))
    if said.content is not None:
        parts.append(Text(text=said.content))
    if said.refusal:
        parts.append(Refusal(text=said.refusal))
    for call in said.tool_calls or ():
        if call.type == "function":
            function = call.function
            parts.append(ToolCall(id=call.id, name=function.name, arguments=function.arguments))
        else:
            parts.append(Unknown(kind=str(call.type), raw=call.model_dump()))
    return Message(role="assistant", parts=tuple(parts))


def _tokens(choice: Any, prompt_ids: Any, policy: Policy, notes: dict[str, Any]) -> Tokens | None:
    ids = (choice.model_extra or {}).get("token_ids")
    if ids is None or prompt_ids is None:
        notes["tokens"] = "the engine sent no token ids"
        return None
    content = choice.logprobs.content if choice.logprobs else None
    logprobs = None if content is None else tuple(float(token.logprob) for token in content)
    if logprobs is None:
        notes["tokens"] = "the engine sent no log-probabilities"
    elif len(logprobs) != len(ids):
        notes["tokens"] = f"{len(logprobs)} log-probabilities beside {len(ids)} token ids"
        logprobs = None
    return Tokens(
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(ids),
        logprobs=logprobs,
        policy_versions=(policy.name,),
        template_digest=policy.template_digest,
        tokenizer_digest=policy.tokenizer_digest,
    )


def _usage(usage: Any, spoke: bool) -> Usage:
    """Zeros beside an answer with content are no count: the engine does not count."""
    if usage is None:
        return Usage(reason="the engine did not say")
    if spoke and not usage.prompt_tokens and not usage.completion_tokens:
        return Usage(reason="the engine said zero beside an answer with content")
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        input_tokens=usage.prompt_tokens,
        cached_input_tokens=prompt.cached_tokens if prompt else None,
        output_tokens=usage.completion_tokens,
        reasoning_tokens=completion.reasoning_tokens if completion else None,
    )

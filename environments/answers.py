"""An OpenAI-compatible server's answers as records.

Enter: the bytes of a chat completion. Leaves: an Answer, its choices with the tokens that were
sampled. Invariant: token ids are the engine's own; none is ever made from text.
"""

from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from flywheel.errors import BadRecord
from flywheel.experts import experts_of
from flywheel.records import (
    Choice,
    Message,
    Part,
    Reasoning,
    Refusal,
    Text,
    Tokens,
    ToolCall,
    Unknown,
    Usage,
)


class Function(Struct):
    name: str
    arguments: str = ""


class Called(Struct):
    id: str | None = None
    type: str = "function"
    function: Function | None = None
    custom: Any = None


class Said(Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Called] | None = None


class Logprob(Struct):
    logprob: float


class Logprobs(Struct):
    content: list[Logprob] | None = None


class Answered(Struct):
    message: Said
    index: int = 0
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    token_ids: tuple[int, ...] | None = None
    routed_experts: str | None = None


class PromptDetails(Struct):
    cached_tokens: int | None = None


class CompletionDetails(Struct):
    reasoning_tokens: int | None = None


class Counted(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Completion(Struct):
    """A chat completion, as far as it is read here."""

    choices: list[Answered]
    model: str | None = None
    usage: Counted | None = None
    prompt_token_ids: tuple[int, ...] | None = None


_completion = msgspec.json.Decoder(Completion).decode


def completion_of(data: bytes) -> Completion:
    """
    Raises:
        BadRecord: it is none.
    """
    try:
        return _completion(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRecord(f"the engine's answer is no chat completion: {error}") from error


class Policy(NamedTuple):
    """Who sampled an answer, and how its engine puts messages into tokens."""

    name: str
    template_digest: str | None = None
    tokenizer_digest: str | None = None


class Answer(NamedTuple):
    choices: tuple[Choice, ...]
    usage: Usage
    model: str | None
    notes: dict[str, Any]
    """Why something of the second stream is missing."""


def answer_of(completion: Completion, policy: Policy | None = None) -> Answer:
    """What the engine answered, in the order of its choices; `policy` is who sampled it (None =
    tokens are recorded elsewhere)."""
    notes: dict[str, Any] = {}
    prompt_ids = completion.prompt_token_ids
    choices = tuple(
        Choice(
            message=_message(choice.message),
            finish_reason=choice.finish_reason or None,
            tokens=_tokens(choice, prompt_ids, policy, notes) if policy else None,
        )
        for choice in sorted(completion.choices, key=lambda choice: choice.index)
    )
    spoke = any(choice.message.parts for choice in choices)
    return Answer(choices, _usage(completion.usage, spoke), completion.model, notes)


def _message(said: Said) -> Message:
    parts: list[Part] = []
    reasoning = said.reasoning_content or said.reasoning
    if reasoning:
        parts.append(Reasoning(text=reasoning))
    parts += _content(said.content)
    if said.refusal:
        parts.append(Refusal(text=said.refusal))
    for call in said.tool_calls or ():
        if call.function is not None:
            function = call.function
            parts.append(ToolCall(id=call.id, name=function.name, arguments=function.arguments))
        else:
            parts.append(Unknown(kind=call.type, raw=msgspec.to_builtins(call)))
    return Message(role="assistant", parts=tuple(parts))


def _content(content: str | list[dict[str, Any]] | None) -> list[Part]:
    """Content is a text, or by a few servers a list of parts."""
    if isinstance(content, str):
        return [Text(text=content)]
    return [
        Text(text=part["text"])
        if isinstance(part.get("text"), str)
        else Unknown(kind=str(part.get("type")), raw=part)
        for part in content or ()
    ]


def _tokens(
    choice: Answered, prompt_ids: tuple[int, ...] | None, policy: Policy, notes: dict[str, Any]
) -> Tokens | None:
    ids = choice.token_ids
    if ids is None or prompt_ids is None:
        notes["tokens"] = "the engine sent no token ids"
        return None
    content = choice.logprobs.content if choice.logprobs else None
    logprobs = None if content is None else tuple(token.logprob for token in content)
    if logprobs is None:
        notes["tokens"] = "the engine sent no log-probabilities"
    elif len(logprobs) != len(ids):
        notes["tokens"] = f"{len(logprobs)} log-probabilities beside {len(ids)} token ids"
        logprobs = None
    return Tokens(
        prompt_ids=prompt_ids,
        completion_ids=ids,
        logprobs=logprobs,
        policy_versions=(policy.name,),
        template_digest=policy.template_digest,
        tokenizer_digest=policy.tokenizer_digest,
        experts=experts_of(choice.routed_experts, len(prompt_ids) + len(ids)),
    )


def _usage(usage: Counted | None, spoke: bool) -> Usage:
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

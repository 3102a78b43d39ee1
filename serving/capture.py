"""One chat completion as a part of a trace: both streams, the words and the token ids.

Enters: a checked request, the deployment that answers, and what the engine said, whole or cut.
Leaves: one `Trace` with one model span. Calls of one conversation have one trace id; the committer
joins their spans. What was cut never looks complete: no finish reason, and `error` says why.
"""

import time
from typing import Any

from msgspec import Struct

from flywheel.lineage import Deployment
from flywheel.records import (
    Choice,
    Message,
    ModelCall,
    Span,
    Tokens,
    Trace,
    trace_id,
)
from serving.answer import Answer, AnswerChoice, usage_of
from serving.chat import Chat
from serving.conversation import Offload, message_of

SOURCE = "gateway"


class Asked(Struct, kw_only=True):
    """A request that was let in: what is known before the engine answers."""

    chat: Chat
    messages: tuple[Message, ...]
    deployment: Deployment
    response_id: str
    request_id: str
    conversation: str | None
    """The caller's id. None = this call is a conversation of its own."""
    user: str | None
    start: int
    template_digest: str | None = None
    """Of the engine's chat template; None = it did not say."""
    tokenizer_digest: str | None = None
    first_byte: int | None = None
    """When the first bytes of the answer came."""
    probability: float = 1.0
    """That such a request goes to this deployment."""
    instead: Deployment | None = None
    """Of a challenger: the champion, who answers where the engine has not loaded it."""
    absent: str | None = None
    """The challenger that was chosen and could not answer."""

    def fall_back(self, champion: Deployment) -> None:
        """While the challenger is away, all requests go to the champion."""
        self.absent, self.deployment = self.deployment.name, champion
        self.probability, self.instead = 1.0, None

    @property
    def external_id(self) -> str:
        return self.conversation or self.response_id

    @property
    def trace_id(self) -> str:
        return trace_id(self.deployment.project, SOURCE, self.external_id)


def trace_of(asked: Asked, answer: Answer | None, error: str | None, offload: Offload) -> Trace:
    """`error` None = the answer is whole."""
    chat, deployment = asked.chat, asked.deployment
    notes: dict[str, Any] = {"request_id": asked.request_id}
    if chat.streamed:
        notes["stream"] = True
    if asked.first_byte is not None:
        notes["first_byte_ns"] = asked.first_byte - asked.start
    if answer is not None and answer.id:
        notes["engine_response_id"] = answer.id
    if asked.absent is not None:
        notes["challenger_absent"] = asked.absent
    if chat.request.metadata:
        notes["metadata"] = chat.request.metadata
    call = ModelCall(
        input=asked.messages,
        choices=_choices(asked, answer, error, offload, notes),
        tools=tuple(chat.request.tools or ()),
        model=chat.request.model,
        response_model=deployment.name if answer is not None else None,
        deployment=deployment.name,
        routing_probability=asked.probability,
        sampling=chat.sampling,
        usage=usage_of(answer.usage if answer else None, bool(answer and answer.choices)),
    )
    span = Span(
        id=asked.response_id,
        kind="model",
        name="chat.completions",
        start=asked.start,
        end=time.time_ns(),
        error=error,
        call=call,
        attributes=notes,
    )
    return Trace(
        id=asked.trace_id,
        project=deployment.project,
        source=SOURCE,
        external_id=asked.external_id,
        origin="production",
        spans=(span,),
        conversation=asked.external_id,
        user=asked.user,
    )


def _choices(
    asked: Asked, answer: Answer | None, error: str | None, offload: Offload, notes: dict[str, Any]
) -> tuple[Choice, ...]:
    if answer is None:
        return ()
    doubt = _doubt(answer) if error is None else None
    choices = []
    for choice in answer.choices:
        tokens, reason = _tokens(choice, answer, asked)
        reason = doubt or reason
        if reason:
            notes["tokens"] = reason
        choices.append(
            Choice(
                message=message_of({"role": "assistant", **choice.message}, offload),
                finish_reason=(choice.finish_reason or None) if error is None else None,
                tokens=None if doubt else tokens,
            )
        )
    return tuple(choices)


def _doubt(answer: Answer) -> str | None:
    """Why the token ids are not the whole of what was sampled; None = nothing says so."""
    said = (answer.usage or {}).get("completion_tokens")
    sent = sum(len(choice.token_ids or ()) for choice in answer.choices)
    if said and sent and said != sent:
        return f"the engine counted {said} tokens and sent {sent} ids"
    return None


def _tokens(choice: AnswerChoice, answer: Answer, asked: Asked) -> tuple[Tokens | None, str | None]:
    if choice.token_ids is None or answer.prompt_token_ids is None:
        return None, "the engine sent no token ids"
    content = choice.logprobs.content if choice.logprobs is not None else None
    logprobs = None if content is None else tuple([token.logprob for token in content])
    reason = None
    if logprobs is None:
        reason = "the engine sent no log-probabilities"
    elif len(logprobs) != len(choice.token_ids):
        reason = f"{len(logprobs)} log-probabilities beside {len(choice.token_ids)} token ids"
        logprobs = None
    tokens = Tokens(
        prompt_ids=answer.prompt_token_ids,
        completion_ids=choice.token_ids,
        logprobs=logprobs,
        policy_versions=(asked.deployment.name,),
        template_digest=asked.template_digest,
        tokenizer_digest=asked.tokenizer_digest,
    )
    return tokens, reason

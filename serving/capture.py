"""One chat completion as a span: both streams, the words and the token ids.

Enters: a checked request, the deployment that answers, and what the engine said, whole or cut.
Leaves: one model span. What was cut never looks complete: no finish reason, and `error` says why.
What the project's rules redact is in no part of it.
"""

import time
from typing import Any

import msgspec
from msgspec import Struct, field

from flywheel.experts import experts_of
from flywheel.records import Choice, Message, ModelCall, Sampling, Span, Tokens, Usage
from serving.answer import LARGEST_COUNT, Answer, AnswerChoice, usage_of
from serving.chat import Chat
from serving.conversation import Offload, message_of
from serving.prices import Price, cost_of
from serving.redaction import Redaction

_ROUNDING = 1e-3
"""By which the logarithm of a certain token may be above zero."""


class Asked(Struct, kw_only=True):
    """A request that was let in: what is known before the engine answers."""

    chat: Chat
    messages: tuple[Message, ...]
    answers: str
    """Name of the deployment that answers."""
    response_id: str
    """The answer's id, as its client sees it."""
    request_id: str
    start: int
    template_digest: str | None = None
    """Of the engine's chat template; None = it did not say."""
    tokenizer_digest: str | None = None
    first_byte: int | None = None
    """When the first bytes of the answer came."""
    probability: float | None = 1.0
    """That such a request goes to this deployment."""
    parents: tuple[str, ...] = ()
    """Spans of the same trace that it goes on from."""
    no_tokens: str | None = None
    """Why what answers can give no token ids; None = it can."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What else the record should say."""
    spoken: str = "chat.completions"
    """The dialect that its client speaks: the span's name."""
    caller: str = ""
    """Name of the key that it came with; "" = none."""
    turn: int | None = None
    """When it got its turn at the engine; None = it did not wait for one."""
    last_byte: int | None = None
    """When the engine's last bytes came."""
    redaction: Redaction | None = None
    """None = nothing is redacted."""
    redacted: bool = False
    """Whether `messages` are other than what was asked."""

    @property
    def span_id(self) -> str:
        return self.response_id

    @property
    def external_id(self) -> str:
        """Of the conversation that it is a part of."""
        return self.response_id

    @property
    def project(self) -> str:
        """ "" = nobody's."""
        return ""

    @property
    def price(self) -> Price | str | None:
        """Of what answers, or why it is not known; None = nobody asks."""
        return None


def span_of(asked: Asked, answer: Answer | None, error: str | None, offload: Offload) -> Span:
    """`error` None = the answer is whole."""
    chat = asked.chat
    notes: dict[str, Any] = {"request_id": asked.request_id, **asked.notes}
    if chat.streamed:
        notes["stream"] = True
    if asked.caller:
        notes["key"] = asked.caller
    if asked.turn is not None:
        notes["queue_ns"] = asked.turn - asked.start
    for name, at in (("first_byte_ns", asked.first_byte), ("last_byte_ns", asked.last_byte)):
        if at is not None:
            notes[name] = at - asked.start
    if answer is not None and answer.id:
        notes["engine_response_id"] = answer.id
    if chat.request.metadata:
        notes["metadata"] = chat.request.metadata
    usage = usage_of(answer.usage if answer else None, bool(answer and answer.choices))
    cost = None if answer is None else _cost(asked, usage, notes)
    tools, sampling = tuple(chat.request.tools or ()), chat.sampling
    choices = _choices(asked, answer, error, offload, notes)
    if (redaction := asked.redaction) is not None:
        tools, sampling = redaction.value(tools), _redacted(sampling, redaction)
        notes, error = redaction.value(notes), error and redaction.text(error)
    call = ModelCall(
        input=asked.messages,
        choices=choices,
        tools=tools,
        model=chat.request.model,
        response_model=asked.answers if answer is not None else None,
        deployment=asked.answers,
        routing_probability=asked.probability,
        sampling=sampling,
        usage=usage,
        cost_usd=cost,
    )
    return Span(
        id=asked.span_id,
        kind="model",
        name=asked.spoken,
        parents=asked.parents,
        start=asked.start,
        end=time.time_ns(),
        error=error,
        call=call,
        attributes=notes,
    )


def _cost(asked: Asked, usage: Usage, notes: dict[str, Any]) -> float | None:
    if asked.price is None:
        return None
    dollars, why = cost_of(usage, asked.price)
    if why is not None:
        notes["cost"] = why
    return dollars


def _choices(
    asked: Asked, answer: Answer | None, error: str | None, offload: Offload, notes: dict[str, Any]
) -> tuple[Choice, ...]:
    if answer is None:
        return ()
    doubt = _doubt(answer) if error is None else None
    choices = []
    for choice in answer.choices:
        message: dict[str, Any] = {"role": "assistant", **choice.message}
        said = message if asked.redaction is None else asked.redaction.value(message)
        tokens, reason = _tokens(choice, answer, asked)
        if doubt or asked.redacted or said is not message:
            tokens, reason = None, doubt or "redacted"
        if reason:
            notes["tokens"] = reason
        choices.append(
            Choice(
                message=message_of(said, offload),
                finish_reason=(choice.finish_reason or None) if error is None else None,
                tokens=tokens,
            )
        )
    return tuple(choices)


def _redacted(sampling: Sampling, redaction: Redaction) -> Sampling:
    stop, other = redaction.value(sampling.stop), redaction.value(sampling.other)
    if stop is sampling.stop and other is sampling.other:
        return sampling
    return msgspec.structs.replace(sampling, stop=stop, other=other)


def _doubt(answer: Answer) -> str | None:
    """Why the token ids are not the whole of what was sampled; None = nothing says so."""
    said = (answer.usage or {}).get("completion_tokens")
    sent = sum(len(choice.token_ids or ()) for choice in answer.choices)
    if said and sent and said != sent:
        return f"the engine counted {said} tokens and sent {sent} ids"
    return None


def _tokens(choice: AnswerChoice, answer: Answer, asked: Asked) -> tuple[Tokens | None, str | None]:
    if asked.no_tokens is not None:
        return None, asked.no_tokens
    if choice.token_ids is None or answer.prompt_token_ids is None:
        return None, "the engine sent no token ids"
    for ids in (answer.prompt_token_ids, choice.token_ids):
        if ids and not (min(ids) >= 0 and max(ids) <= LARGEST_COUNT):
            return None, "the engine sent token ids that no tokenizer has"
    content = choice.logprobs.content if choice.logprobs is not None else None
    logprobs = None if content is None else tuple([token.logprob for token in content])
    reason = None
    if logprobs is None:
        reason = "the engine sent no log-probabilities"
    elif len(logprobs) != len(choice.token_ids):
        reason = f"{len(logprobs)} log-probabilities beside {len(choice.token_ids)} token ids"
        logprobs = None
    elif logprobs and max(logprobs) > _ROUNDING:
        reason, logprobs = "the engine sent a log-probability above zero", None
    tokens = Tokens(
        prompt_ids=answer.prompt_token_ids,
        completion_ids=choice.token_ids,
        logprobs=logprobs,
        policy_versions=(asked.answers,),
        template_digest=asked.template_digest,
        tokenizer_digest=asked.tokenizer_digest,
        experts=experts_of(
            choice.routed_experts, len(answer.prompt_token_ids) + len(choice.token_ids)
        ),
    )
    return tokens, reason

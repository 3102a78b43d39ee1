"""What the engine answered: understood for the record, and rewritten for the client.

The client gets the engine's bytes, with our id and the deployment's name put in and with the token
ids, log-probabilities and usage taken out again that it had not asked for. Never the other way
round: what is recorded is what the engine said.
"""

import json
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from flywheel.errors import EngineError
from flywheel.records import Usage

T = TypeVar("T")
LARGEST_COUNT = 2**31 - 1
"""Of tokens, and of their ids: a larger one is nonsense, and would fit no column."""
_NULL = Raw(b"null")


class TokenLogprob(Struct, gc=False):
    logprob: float


class Logprobs(Struct):
    content: list[TokenLogprob] | None = None


class AnswerChoice(Struct):
    message: dict[str, Any]
    index: int = 0
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    token_ids: tuple[int, ...] | None = None
    routed_experts: str | None = None
    """base64 of an .npy array (`flywheel.experts`)."""


class Answer(Struct):
    """A whole answer, streamed or not. Choices are in the order of their index."""

    choices: list[AnswerChoice]
    usage: dict[str, Any] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    id: str | None = None
    """The engine's own id of the answer."""


_answer = msgspec.json.Decoder(Answer)
_fields = msgspec.json.Decoder(dict[str, Raw])
_choices = msgspec.json.Decoder(list[dict[str, Raw]])


class Rewrite:
    """How one client's answer differs from the engine's."""

    def __init__(
        self, response_id: str, model: str, *, logprobs: bool, ids: bool, usage: bool = True
    ) -> None:
        self.id = Raw(msgspec.json.encode(response_id))
        self.model = Raw(msgspec.json.encode(model))
        self.logprobs, self.ids, self.usage = logprobs, ids, usage

    def __call__(self, body: bytes) -> bytes:
        """An answer or one chunk of a stream, as the client should see it."""
        fields: dict[str, Any] = dict(_fields.decode(body))
        fields["id"], fields["model"] = self.id, self.model
        if not self.ids:
            fields.pop("prompt_token_ids", None)
        if not self.usage:
            fields.pop("usage", None)
        if "choices" in fields and not (self.ids and self.logprobs):
            choices = _choices.decode(fields["choices"])
            for choice in choices:
                if not self.ids:
                    choice.pop("token_ids", None)
                    choice.pop("routed_experts", None)
                if not self.logprobs and "logprobs" in choice:
                    choice["logprobs"] = _NULL
            fields["choices"] = choices
        return msgspec.json.encode(fields)


def understand(body: bytes) -> tuple[Answer, bytes]:
    """The answer, and its bytes as they may be passed on.

    Raises:
        EngineError: `body` is no chat completion.
    """
    answer, body = decode_mended(body, _answer)
    answer.choices.sort(key=lambda choice: choice.index)
    return answer, body


def decode_mended(body: bytes, decoder: msgspec.json.Decoder[T]) -> tuple[T, bytes]:
    """Decodes what an engine sent; half a surrogate pair (a split emoji) becomes U+FFFD.

    Raises:
        EngineError: it is not what the decoder expects.
    """
    try:
        return decoder.decode(body), body
    except msgspec.ValidationError as error:
        raise EngineError(f"the engine's answer is no chat completion: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            text = json.dumps(json.loads(body), ensure_ascii=False)
            body = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
            return decoder.decode(body), body
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            raise EngineError(f"the engine's answer is not JSON: {error}") from error


def usage_of(usage: dict[str, Any] | None, said_something: bool) -> Usage:
    """As OpenAI counts: cached tokens are part of the prompt's, reasoning is part of the answer's.

    Zeros beside content are no count, they are an engine that does not count.
    """
    if not usage:
        return Usage(reason="the engine did not say")
    prompt, completion = (_count(usage.get(f"{side}_tokens")) for side in ("prompt", "completion"))
    if said_something and not prompt and not completion:
        return Usage(reason="the engine said zero beside an answer with content")
    prompt_details, answer_details = (
        details if isinstance(details := usage.get(f"{side}_tokens_details"), dict) else {}
        for side in ("prompt", "completion")
    )
    return Usage(
        input_tokens=prompt,
        cached_input_tokens=_count(prompt_details.get("cached_tokens")),
        cache_write_tokens=_count(prompt_details.get("cache_write_tokens")),
        output_tokens=completion,
        reasoning_tokens=_count(answer_details.get("reasoning_tokens")),
        reason=None if None not in (prompt, completion) else "the engine said only a part",
    )


def counted(usage: dict[str, Any] | None, name: str, inner: str | None = None) -> int | None:
    """One of its numbers, which may stand in details. None = it is not said, or is none."""
    value = (usage or {}).get(name)
    if inner is not None:
        value = value.get(inner) if isinstance(value, dict) else None
    return _count(value)


def _count(value: Any) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= LARGEST_COUNT else None

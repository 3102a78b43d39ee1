"""What a request may ask of the embedded engine: types, bounds, and what it cannot do.

Unknown fields are ignored. A field that would change the answer and that this engine does not have
is refused unless it is at its neutral value: silently ignoring it would be a wrong answer.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from serving.engines.embedded_choose import Choosing
from serving.limits import decode
from serving.refusal import ApiError, invalid

DEPTH = 64
MAX_CHOICES = 64
MAX_PROMPTS = 256
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
    "length_penalty": (1,), "min_p": (0,), "min_tokens": (0,), "logit_bias": ({},),
    "bad_words": ([],), "response_format": ({"type": "text"},),
    "best_of": (1,), "use_beam_search": (False,), "suffix": ("",), "structured_outputs": ({},),
    "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (),
    "functions": ([],), "audio": (), "prediction": (), "modalities": (["text"],),
}  # fmt: skip
"""Fields that are refused at any other value than these or null."""

Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Id = Annotated[int, Meta(ge=0)]
R = TypeVar("R", bound="Asked")


class StreamOptions(Struct):
    include_usage: bool | None = None


class GangId(Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=200)]
    size: Annotated[int, Meta(ge=1, le=1024)]
    """Requests that belong to it."""


class Asked(Struct, kw_only=True):
    """What chat and plain completions have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    seed: Seed | None = None
    stop: str | Annotated[list[str], Meta(max_length=16)] | None = None
    stop_token_ids: list[Id] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    flywheel_gang: GangId | None = None
    flywheel_steady: bool | None = None
    """The same request gives the same bits, whatever else is under way."""

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def choosing(self, top_logprobs: int) -> Choosing:
        return Choosing(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            top_logprobs=top_logprobs,
        )


class ChatAsked(Asked, kw_only=True):
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class CompletionAsked(Asked, kw_only=True):
    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None

    def prompts(self) -> list[str] | list[list[int]]:
        """One or several, texts or ids; never mixed.

        Raises:
            ApiError: 400.
        """
        raw: Any = self.prompt
        if isinstance(raw, str) or (raw and all(type(item) is int for item in raw)):
            raw = [raw]
        if not raw or len(raw) > MAX_PROMPTS:
            raise invalid(f"prompt must hold 1 to {MAX_PROMPTS} prompts", "prompt")
        if all(isinstance(item, str) for item in raw):
            return list(raw)
        if all(
            isinstance(item, list) and item and all(type(token) is int for token in item)
            for item in raw
        ):
            return [list(item) for item in raw]
        raise invalid("prompt must be a string, token ids, or a list of either", "prompt")


class LoadAsked(Struct):
    lora_name: Annotated[str, Meta(min_length=1)]
    lora_path: Annotated[str, Meta(min_length=1)]


class UnloadAsked(Struct):
    lora_name: Annotated[str, Meta(min_length=1)]


class WeightsAsked(Struct):
    path: Annotated[str, Meta(min_length=1)]


_chat = msgspec.json.Decoder(ChatAsked)
_completion = msgspec.json.Decoder(CompletionAsked)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_chat(body: bytes) -> ChatAsked:
    asked = decode(body, _chat, DEPTH)
    _check(asked, body, own=("response_format",))
    if asked.top_logprobs and not asked.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    if asked.max_completion_tokens is not None:
        asked.max_tokens = asked.max_completion_tokens
    if asked.max_tokens == 0:
        raise invalid("max_tokens must be at least 1", "max_tokens")
    if asked.tool_choice == "none":
        asked.tools = None
    return asked


def read_completion(body: bytes) -> CompletionAsked:
    asked = decode(body, _completion, DEPTH)
    _check(asked, body)
    if asked.max_tokens is None:
        asked.max_tokens = 16
    if asked.stream and (asked.prompt_logprobs is not None or asked.echo):
        raise invalid("echo and prompt_logprobs are not streamed", "stream")
    return asked


def _check(asked: Asked, body: bytes, own: Sequence[str] = ()) -> None:
    """
    Args:
        own: fields that the route knows itself.
    """
    if any(not stop for stop in asked.stops):
        raise invalid("a stop string may not be empty", "stop")
    fields = _fields.decode(body)
    for name in (fields.keys() & _NEUTRAL.keys()) - set(own):
        value = msgspec.json.decode(fields[name])
        if value is not None and value not in _NEUTRAL[name]:
            raise invalid(
                f"the embedded engine has no {name}: leave it out, or serve with vLLM "
                '([serving] engine = "vllm")',
                name,
            )


def fit(prompt: int, asked: int | None, context: int) -> int:
    """How many tokens an answer to `prompt` tokens may have.

    Raises:
        ApiError: 400: there is room for none.
    """
    if prompt >= context:
        raise ApiError(
            400,
            f"the prompt has {prompt} tokens; prompt and answer together may have {context}",
            param="messages",
            code="context_length_exceeded",
        )
    return min(asked if asked is not None else context, context - prompt)

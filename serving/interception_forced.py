"""One call of a harness, sampled as the run wants it and not as the harness does.

Enters: a request's body. Leave: the body that the model's server gets, and what is recorded of it.
Invariant: temperature, top-p, seed and bound are the run's; what else would shape the distribution
is taken out and kept as a note, so that the behaviour policy is the one that the record names.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Raw

from flywheel.episodes import Forced
from flywheel.ids import seed_of
from flywheel.records import Sampling
from serving.chat import Chat
from serving.limits import Limits

SHAPING = frozenset((
    "temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "max_tokens",
    "max_completion_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "length_penalty", "logit_bias", "bad_words", "min_tokens", "ignore_eos", "allowed_token_ids",
    "best_of", "use_beam_search", "logits_processors", "flywheel_gang", "flywheel_steady",
))  # fmt: skip
"""Fields that decide what is sampled. A grammar (`response_format`, `tool_choice`) is what the
harness is about: it passes, and the record's `sampling.other` has it."""
TEMPLATED = frozenset((
    "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
    "documents", "add_special_tokens", "reasoning_effort", "mm_processor_kwargs",
))  # fmt: skip
"""Fields that lay the prompt out in another way than the template alone."""
_OF_COMPLETIONS = frozenset((
    "n", "stream", "stop", "stop_token_ids", "include_stop_str_in_output", "response_format",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "vllm_xargs", "priority", "cache_salt",
))  # fmt: skip
"""Fields that mean the same to /v1/completions."""
_NOTED = 1024
"""Bytes of a value that was overruled."""
_TRUE, _NULL, _AUTO = Raw(b"true"), Raw(b"null"), Raw(b'"auto"')


class ForcedChat(Chat):
    """A harness's request; `number` it before it is sent."""

    def __init__(self, body: bytes, limits: Limits, forced: Forced, *, tokens: bool) -> None:
        """
        Args:
            tokens: whether the model's server gives token ids and log-probabilities.

        Raises:
            ApiError: 400: `body` is no chat request.
        """
        super().__init__(body, limits)
        self.forced, self.tokens, self.seed = forced, tokens, forced.seed

    def number(self, number: int) -> None:
        self.seed = seed_of(self.forced.seed, number)

    @cached_property
    def bound(self) -> int:
        """Tokens that the answer may have: the harness may ask for fewer than the run."""
        asked = (self.request.max_tokens, self.request.max_completion_tokens)
        return min(self.forced.max_tokens, *(bound for bound in asked if bound), 2**31)

    def forced_fields(self, *, bounded: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "temperature": self.forced.temperature,
            "top_p": self.forced.top_p,
            "seed": self.seed,
        }
        if self.forced.steady:
            fields["flywheel_steady"] = True
        if bounded:
            named = "max_completion_tokens" in self.fields and "max_tokens" not in self.fields
            fields["max_completion_tokens" if named else "max_tokens"] = self.bound
        if self.request.stream:
            options = self.request.stream_options or {}
            fields["stream_options"] = {**options, "include_usage": True}
        return fields

    def for_engine(self, model: str, *, bounded: bool = True) -> bytes:
        fields: dict[str, Any] = {
            name: value for name, value in self.fields.items() if name not in SHAPING
        }
        fields |= {"model": model, **self.forced_fields(bounded=bounded)}
        if self.tokens:
            fields |= {"logprobs": _TRUE, "return_token_ids": _TRUE}
        else:
            fields.pop("return_token_ids", None)
        return msgspec.json.encode(fields)

    def for_completions(self, model: str, prompt: Sequence[int], *, bounded: bool = True) -> bytes:
        """The same request, to /v1/completions with a prompt of token ids."""
        fields: dict[str, Any] = {
            name: value for name, value in self.fields.items() if name in _OF_COMPLETIONS
        }
        fields |= self.forced_fields(bounded=bounded)
        if (bound := fields.pop("max_completion_tokens", None)) is not None:
            fields["max_tokens"] = bound
        fields |= {"model": model, "prompt": prompt, "logprobs": self.request.top_logprobs or 0}
        return msgspec.json.encode({**fields, "return_token_ids": True})

    @property
    def templated(self) -> bool:
        return any(self.fields.get(name) not in (None, _NULL) for name in TEMPLATED)

    @property
    def plain(self) -> bool:
        """Whether the prompt is what the template makes of messages and tools, and the answer is
        bound to no one tool."""
        return not self.templated and self.fields.get("tool_choice") in (None, _NULL, _AUTO)

    @cached_property
    def sampling(self) -> Sampling:
        said = super().sampling
        return Sampling(
            temperature=self.forced.temperature,
            top_p=self.forced.top_p,
            max_tokens=self.bound,
            seed=self.seed,
            stop=said.stop,
            other={name: value for name, value in said.other.items() if name not in SHAPING},
        )

    @property
    def overruled(self) -> dict[str, Any]:
        """What the harness asked for and did not get."""
        got = {"temperature": self.forced.temperature, "top_p": self.forced.top_p}
        got |= dict.fromkeys(("max_tokens", "max_completion_tokens"), self.bound)
        asked = {name: _short(self.fields[name]) for name in SHAPING & self.fields.keys()}
        return {
            name: value
            for name, value in sorted(asked.items())
            if value is not None and got.get(name) != value
        }


def _short(raw: Raw) -> Any:
    return msgspec.json.decode(raw) if len(bytes(raw)) <= _NOTED else "too long to be kept"

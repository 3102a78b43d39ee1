"""A chat completion request: what we must know of it, and everything else as the client wrote it.

Values pass to the engine byte for byte; only `model`, what asks for token ids, log-probabilities
and usage, and the bound on the answer's length are set by us.
"""

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

import msgspec
from msgspec import Meta, Raw, Struct

from flywheel.records import Sampling
from serving.limits import Limits, decode, identifier
from serving.refusal import invalid

if TYPE_CHECKING:
    from serving.passing import Replying

_TRUE = Raw(b"true")
_SEEN = {
    "model", "messages", "stream", "stream_options", "tools", "temperature", "top_p", "top_k",
    "max_tokens", "max_completion_tokens", "seed", "stop", "logprobs", "top_logprobs",
    "return_token_ids", "user", "metadata",
}  # fmt: skip
Positive = Annotated[int, Meta(ge=1)]
NATIVE = "flywheel_native"
"""Field of an answer or a chunk in the chat form: the same in the provider's own words."""


class Native(NamedTuple):
    """A request as its client wrote it, where that is another form than chat completions."""

    protocol: Literal["anthropic"]
    fields: dict[str, Raw]


class ChatRequest(Struct, frozen=True):
    """The fields that the gateway reads, of the types that OpenAI gives them."""

    model: str
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: Positive | None = None
    tools: list[dict[str, Any]] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    return_token_ids: bool | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None


_typed = msgspec.json.Decoder(ChatRequest)
_fields = msgspec.json.Decoder(dict[str, Raw])


class Chat:
    """One request, checked."""

    route = "/v1/chat/completions"
    """Where the engine is asked."""
    turned = False
    """Whether its client wrote it in another protocol."""
    bare = False
    """Whether its prompt goes to the engine as it is, with no template around it."""

    def __init__(self, body: bytes, limits: Limits) -> None:
        """
        Raises:
            ApiError: 400: `body` is no chat request or asks for more than the limits allow.
        """
        self.request = decode(body, _typed, limits.depth)
        self.fields = _fields.decode(body)
        self.limits = limits
        self.native: Native | None = None
        """Set by a dialect whose protocol a provider speaks too: it gets the client's own words,
        and each answer or chunk has the provider's own as `NATIVE`, for the dialect to pass on."""
        self.after: tuple[str, str] | None = None
        """Project and id of the response that it goes on from, where the client names one."""
        self._check()

    def _check(self) -> None:
        request, limits = self.request, self.limits
        if len(request.messages) > limits.messages:
            raise invalid(f"there are more than {limits.messages} messages", "messages")
        if request.n is not None and request.n > limits.max_choices:
            raise invalid(f"n is {request.n}; this server allows {limits.max_choices}", "n")
        for name in ("max_tokens", "max_completion_tokens"):
            asked = getattr(request, name)
            if asked is not None and asked > limits.max_tokens:
                raise invalid(f"{name} is {asked}; this server allows {limits.max_tokens}", name)
        if request.top_logprobs and not request.logprobs:
            raise invalid("top_logprobs needs logprobs: true", "top_logprobs")

    @property
    def streamed(self) -> bool:
        return bool(self.request.stream)

    @property
    def choices(self) -> int:
        return self.request.n or 1

    @property
    def longest(self) -> int:
        """Tokens of an answer, at most."""
        asked = self.request.max_completion_tokens or self.request.max_tokens
        return asked or self.limits.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.request.logprobs)

    @property
    def wants_ids(self) -> bool:
        return bool(self.request.return_token_ids)

    @property
    def wants_usage(self) -> bool:
        """Of a stream: whether the client asked for the usage chunk."""
        return bool((self.request.stream_options or {}).get("include_usage"))

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The form that the answer must have; None = any text will do."""
        raw = self.fields.get("response_format")
        asked = msgspec.json.decode(raw) if raw is not None else None
        known = isinstance(asked, dict) and asked.get("type") in ("json_object", "json_schema")
        return asked if known else None

    def conversation(self, header: str | None) -> str | None:
        """The caller's id of the conversation. None = none was given."""
        if header is not None:
            return identifier(header, "x-conversation-id", self.limits.identifier)
        return self._metadata_id("conversation_id") or self._metadata_id("conversation")

    def user(self) -> str | None:
        if self.request.user is not None:
            return identifier(self.request.user, "user", self.limits.identifier)
        return self._metadata_id("user")

    def _metadata_id(self, key: str) -> str | None:
        value = (self.request.metadata or {}).get(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        return identifier(value, f"metadata.{key}", self.limits.identifier)

    def heard(self, reply: "Replying") -> "Replying":
        """The engine's reply, in the chat form."""
        return reply

    def unstreamed(self) -> Self:
        """The same request, to be answered in one piece."""
        if not self.streamed:
            return self
        whole = copy.copy(self)
        whole.request = msgspec.structs.replace(self.request, stream=None, stream_options=None)
        whole.fields = without_stream(self.fields)
        if self.native is not None:
            whole.native = self.native._replace(fields=without_stream(self.native.fields))
        return whole

    def for_engine(self, model: str, *, bounded: bool = True) -> bytes:
        """The body that the engine gets; not `bounded`: the answer may be as long as there is
        room."""
        fields: dict[str, Any] = {
            **self.fields,
            "model": model,
            "logprobs": _TRUE,
            "return_token_ids": _TRUE,
        }
        request = self.request
        if not bounded:
            fields.pop("max_tokens", None)
            fields.pop("max_completion_tokens", None)
        elif request.max_tokens is None and request.max_completion_tokens is None:
            fields["max_tokens"] = self.limits.max_tokens
        if request.stream:
            fields["stream_options"] = {**(request.stream_options or {}), "include_usage": True}
        return msgspec.json.encode(fields)

    @cached_property
    def sampling(self) -> Sampling:
        request = self.request
        stop = request.stop
        return Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            max_tokens=self.longest,
            seed=request.seed,
            stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
            other=_others(self.fields),
        )


def without_stream(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    return {name: raw for name, raw in fields.items() if name not in ("stream", "stream_options")}


def _others(fields: Mapping[str, Raw]) -> dict[str, Any]:
    return {key: msgspec.json.decode(raw) for key, raw in fields.items() if key not in _SEEN}

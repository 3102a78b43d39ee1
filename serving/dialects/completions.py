"""OpenAI's text completions: a prompt as it is, text or token ids, with no template around it.

The engine is asked in this protocol and its reply told in the chat form, so that it is recorded as
any other; the engine's own words ride along as `NATIVE` and go to the client, less the ids and
log-probabilities that it had not asked for. One prompt a request: each is a record of its own.
"""

from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
from msgspec import Meta, Raw, Struct, field

from serving.answer import decode_mended
from serving.capture import Asked
from serving.chat import NATIVE, Chat, without_stream
from serving.dialects.chat import SpeakingChat
from serving.keys import Caller
from serving.limits import Limits, decode
from serving.refusal import ApiError, invalid
from serving.stream import Events, data_of

if TYPE_CHECKING:
    from serving.passing import Replying

_DONE = b"data: [DONE]\n\n"
_OWN = {"prompt", "logprobs", "echo", "suffix", "best_of"}
"""Fields that mean something else, or nothing, in the chat form."""
Ids = Annotated[list[Annotated[int, Meta(ge=0, lt=2**31)]], Meta(min_length=1)]


class CompletionRequest(Struct, frozen=True):
    model: str
    prompt: str | list[Any]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    echo: bool | None = None


class _Logprobs(Struct):
    token_logprobs: list[float | None] = field(default_factory=list)


class _Choice(Struct):
    index: int = 0
    text: str = ""
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Completion(Struct):
    choices: list[_Choice] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    id: str | None = None
    error: Any = None


_request = msgspec.json.Decoder(CompletionRequest)
_completion = msgspec.json.Decoder(_Completion)
_fields = msgspec.json.Decoder(dict[str, Raw])
_choices = msgspec.json.Decoder(list[dict[str, Raw]])
_NULL, _TRUE = Raw(b"null"), Raw(b"true")


class CompletionChat(Chat):
    """A prompt as a chat of one message, for the record; `given` is what the engine gets."""

    route, bare = "/v1/completions", True

    def __init__(self, body: bytes, limits: Limits) -> None:
        """
        Raises:
            ApiError: 400: it is no such request.
        """
        self.asked = decode(body, _request, limits.depth)
        self.given = _fields.decode(body)
        self.prompt = _prompt(self.asked.prompt)
        text = isinstance(self.prompt, str)
        said = self.prompt if text else [{"type": "token_ids", "token_ids": self.prompt}]
        chat = {name: raw for name, raw in self.given.items() if name not in _OWN}
        chat["messages"] = Raw(msgspec.json.encode([{"role": "user", "content": said}]))
        if self.asked.max_tokens == 0:
            # Only the prompt is scored; the chat form has no word for that.
            chat["max_tokens"] = Raw(b"1")
        super().__init__(msgspec.json.encode(chat), limits)

    def for_engine(self, model: str, *, bounded: bool = True) -> bytes:
        fields: dict[str, Any] = {
            **self.given,
            "model": model,
            "logprobs": self.asked.logprobs or 0,
            "return_token_ids": _TRUE,
        }
        if not bounded:
            fields.pop("max_tokens", None)
        elif self.asked.max_tokens is None:
            fields["max_tokens"] = self.limits.max_tokens
        if self.streamed:
            options = self.request.stream_options or {}
            fields["stream_options"] = {**options, "include_usage": True}
        return msgspec.json.encode(fields)

    def heard(self, reply: "Replying") -> "Replying":
        return CompletionReply(reply, self)

    def unstreamed(self) -> Self:
        whole = super().unstreamed()
        whole.given = without_stream(self.given)
        return whole

    def in_chat_form(self, body: bytes) -> bytes:
        """A whole answer or a chunk.

        Raises:
            EngineError: it is neither.
        """
        said, body = decode_mended(body, _completion)
        if said.error is not None:
            return msgspec.json.encode({"error": said.error})
        prompts = [ids for one in said.choices if (ids := one.prompt_token_ids) is not None]
        return msgspec.json.encode(
            {
                "id": said.id,
                "model": "",
                "choices": [self._choice(one) for one in said.choices],
                "usage": said.usage,
                "prompt_token_ids": prompts[0] if prompts else None,
                NATIVE: Raw(body),
            }
        )

    def _choice(self, said: _Choice) -> dict[str, Any]:
        text, ids, logprobs = said.text, said.token_ids, None
        if self.asked.echo and isinstance(self.prompt, str):
            text = text.removeprefix(self.prompt)
        if said.logprobs is not None and ids is not None:
            # Echoed, those of the prompt stand before them.
            own = said.logprobs.token_logprobs[-len(ids) :] if ids else []
            if None not in own:
                logprobs = {"content": [{"logprob": one} for one in own]}
        message = {"role": "assistant", "content": text}
        return {
            "index": said.index,
            "message": message,
            "delta": message,
            "finish_reason": said.finish_reason,
            "logprobs": logprobs,
            "token_ids": ids,
        }

    def for_client(self, asked: Asked, body: bytes) -> bytes:
        """The engine's own words, out of an answer or chunk of the chat form."""
        own = _fields.decode(_fields.decode(body)[NATIVE])
        fields: dict[str, Any] = dict(own)
        fields["id"] = asked.response_id
        fields["model"] = asked.answers
        if not self.wants_usage and self.streamed:
            fields.pop("usage", None)
        if "choices" in own:
            fields["choices"] = choices = _choices.decode(own["choices"])
            for choice in choices:
                if self.asked.logprobs is None and "logprobs" in choice:
                    choice["logprobs"] = _NULL
                if not self.wants_ids:
                    choice.pop("token_ids", None)
                    choice.pop("prompt_token_ids", None)
        return msgspec.json.encode(fields)


class CompletionReply:
    """Implements `passing.Replying`: the engine's reply in the chat form."""

    def __init__(self, reply: "Replying", chat: CompletionChat) -> None:
        self._reply, self._chat = reply, chat
        self._events = Events()
        self.is_stream = reply.is_stream

    async def read(self) -> bytes:
        return self._chat.in_chat_form(await self._reply.read())

    async def piece(self) -> bytes:
        while piece := await self._reply.piece():
            if turned := b"".join(map(self._turned, self._events.feed(piece))):
                return turned
        return b""

    async def finish(self) -> None:
        await self._reply.finish()

    def _turned(self, event: bytes) -> bytes:
        payload = data_of(event)
        if payload is None:
            return event + b"\n\n"
        if payload == b"[DONE]":
            return _DONE
        return b"data: " + self._chat.in_chat_form(payload) + b"\n\n"


class CompletionsDialect:
    """Implements `contract.Dialect`."""

    name, prefix, recorded = "completions", "cmpl-", True

    def read(self, body: bytes, limits: Limits, caller: Caller) -> Chat:
        return CompletionChat(body, limits)

    def whole(self, asked: Asked, body: bytes) -> bytes:
        assert isinstance(asked.chat, CompletionChat)
        return asked.chat.for_client(asked, body)

    def stream(self, asked: Asked) -> "SpeakingCompletions":
        return SpeakingCompletions(asked)

    def refuse(self, error: ApiError) -> bytes:
        return error.body()


class SpeakingCompletions(SpeakingChat):
    def __init__(self, asked: Asked) -> None:
        assert isinstance(asked.chat, CompletionChat)
        self._asked, self._chat = asked, asked.chat

    def say(self, event: bytes) -> bytes:
        return super().say(self._chat.for_client(self._asked, event))


def _prompt(given: str | list[Any]) -> str | list[int]:
    """
    Raises:
        ApiError: 400: it is not one prompt.
    """
    if isinstance(given, str):
        return given
    if len(given) == 1 and isinstance(given[0], str | list):
        return _prompt(given[0])
    if any(isinstance(one, str | list) for one in given):
        text = "prompt: one prompt a request, since each is a record of its own: send several"
        raise invalid(f"{text} requests", "prompt")
    try:
        return msgspec.convert(given, Ids)
    except msgspec.ValidationError as error:
        text = "prompt must be a text or token ids, and not empty"
        raise invalid(text, "prompt") from error

"""A streamed answer: passed on event by event, and put together for the record.

`feed` takes bytes as they come from the engine and returns what the client gets now. From the event
that finishes the last choice on, nothing is returned but kept in `held`: the caller records the
answer first and then sends it, so that no client sees an end that a crash could lose.
"""

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from flywheel.errors import EngineError
from serving.answer import (
    Answer,
    AnswerChoice,
    Logprobs,
    Rewrite,
    TokenLogprob,
    decode_mended,
)

if TYPE_CHECKING:
    from serving.dialects.contract import Speaking

_MAX_EVENT = 16 * 2**20


class Delta(Struct):
    index: int = 0
    delta: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    token_ids: list[int] | None = None
    routed_experts: str | None = None


class Chunk(Struct):
    choices: list[Delta] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    id: str | None = None
    error: Any = None


_chunk = msgspec.json.Decoder(Chunk)


class Growing:
    """One choice while its deltas arrive."""

    def __init__(self) -> None:
        self.role = "assistant"
        self.texts: dict[str, list[str]] = {}
        self.others: dict[str, Any] = {}
        self.calls: list[_Call] = []
        self.finish_reason: str | None = None
        self.ids: list[int] | None = None
        self.logprobs: list[TokenLogprob] | None = None
        self.experts: str | None = None
        """Of all its tokens and the prompt's: an engine that says them in a stream does so once."""

    def add(self, event: Delta) -> None:
        for key, value in event.delta.items():
            if key == "tool_calls" and isinstance(value, list):
                for part in value:
                    self._add_call(part)
            elif key == "role":
                self.role = value or self.role
            elif isinstance(value, str):
                self.texts.setdefault(key, []).append(value)
            elif value is not None:
                self.others[key] = value
        # "" is no reason; some engines send it with every event.
        self.finish_reason = event.finish_reason or self.finish_reason
        if event.token_ids is not None:
            self.ids = self.ids or []
            self.ids += event.token_ids
        if event.logprobs is not None and event.logprobs.content is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += event.logprobs.content
        self.experts = event.routed_experts or self.experts

    def _add_call(self, part: Any) -> None:
        """Fragments of parallel calls come mixed; their index says whose they are."""
        if not isinstance(part, dict):
            return
        index, call_id = part.get("index"), part.get("id")
        same = [call for call in self.calls if index is not None and call.index == index]
        if not same and index is None and not call_id:
            same = self.calls[-1:]
        if not same:
            same = [_Call(index)]
            self.calls += same
        same[0].add(call_id, part.get("function"))

    def message(self) -> dict[str, Any]:
        """The message that the engine would have sent in one piece."""
        message: dict[str, Any] = {"role": self.role, "content": None, **self.others}
        message |= {key: "".join(pieces) for key, pieces in self.texts.items()}
        if self.calls:
            message["tool_calls"] = [call.whole() for call in self.calls]
            # Engines open every stream with an empty content, one of nothing but calls too.
            message["content"] = message["content"] or None
        return message

    def choice(self, index: int) -> AnswerChoice:
        return AnswerChoice(
            message=self.message(),
            index=index,
            finish_reason=self.finish_reason,
            logprobs=None if self.logprobs is None else Logprobs(content=self.logprobs),
            token_ids=None if self.ids is None else tuple(self.ids),
            routed_experts=self.experts,
        )


class _Call:
    def __init__(self, index: Any) -> None:
        self.index, self.id, self.name = index, None, ""
        self.arguments: list[str] = []

    def add(self, call_id: Any, function: Any) -> None:
        self.id = self.id or call_id
        if not isinstance(function, dict):
            return
        name, arguments = function.get("name"), function.get("arguments")
        # Some engines repeat the whole name with every fragment.
        if isinstance(name, str) and name != self.name:
            self.name += name
        if isinstance(arguments, str):
            self.arguments.append(arguments)

    def whole(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class Events:
    """Bytes as they come, cut into server-sent events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are whole now, without the empty lines that end them.

        Raises:
            EngineError: one is too large.
        """
        data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > _MAX_EVENT:
            raise EngineError(f"the engine sent an event of over {_MAX_EVENT // 2**20} MiB")
        return events


class StreamedAnswer:
    """The state of one stream: what came so far, and what is held back at its end."""

    def __init__(self, rewrite: Rewrite, choices: int, speaking: "Speaking") -> None:
        self.rewrite, self.expected, self._speaking = rewrite, choices, speaking
        self.held: list[bytes] = []
        """What may be sent only once the answer is recorded."""
        self.done = False
        """The engine said that this was all."""
        self.error: str | None = None
        """The engine's own words, where it reported an error amid the stream."""
        self._events = Events()
        self._growing: dict[int, Growing] = {}
        self._usage: dict[str, Any] | None = None
        self._prompt_ids: tuple[int, ...] | None = None
        self._id: str | None = None

    @property
    def finished(self) -> bool:
        """Every choice has its finish reason."""
        reasons = [choice.finish_reason for choice in self._growing.values()]
        return len(reasons) >= self.expected and None not in reasons

    def feed(self, data: bytes) -> bytes:
        """
        Raises:
            EngineError: an event that is no chunk of a chat completion.
        """
        now: list[bytes] = []
        for event in self._events.feed(data):
            out = self._event(event)
            (self.held if self.finished or self.done or self.error else now).append(out)
        return b"".join(now)

    def _event(self, event: bytes) -> bytes:
        payload = data_of(event)
        if payload is None:
            return self._speaking.comment(event)
        if payload == b"[DONE]":
            self.done = True
            return b""
        chunk, payload = decode_mended(payload, _chunk)
        if chunk.error is not None:
            self.error = _words(chunk.error)
            return b""
        self._take(chunk)
        if not chunk.choices and chunk.usage is not None and not self.rewrite.usage:
            return b""
        return self._speaking.say(self.rewrite(payload))

    def _take(self, chunk: Chunk) -> None:
        self._id = self._id or chunk.id
        self._usage = chunk.usage or self._usage
        self._prompt_ids = self._prompt_ids or chunk.prompt_token_ids
        for event in chunk.choices:
            self._growing.setdefault(event.index, Growing()).add(event)

    def answer(self) -> Answer:
        """What came so far, as the engine would have sent it in one piece."""
        return Answer(
            choices=[growing.choice(index) for index, growing in sorted(self._growing.items())],
            usage=self._usage,
            prompt_token_ids=self._prompt_ids,
            id=self._id,
        )


def data_of(event: bytes) -> bytes | None:
    """The data of an event; None = it has none (a comment that keeps the line alive)."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [
        line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None


def _words(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:2000]

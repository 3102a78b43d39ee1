"""Anthropic's Messages: the way in is `messages_request`'s, the way back is here.

Where a provider that speaks Messages answers, its own words pass on: only the id and the model's
name are ours. Usage is in Anthropic's convention: cached tokens stand beside `input_tokens`, and
not in it.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from flywheel.errors import EngineError
from flywheel.ids import new_ulid
from serving.answer import counted
from serving.capture import Asked
from serving.chat import NATIVE, Chat
from serving.dialects.blocks import Block, Blocks, Step, blocks_of, first_choice
from serving.dialects.messages_request import chat_of
from serving.keys import Caller
from serving.limits import Limits
from serving.refusal import ApiError

_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_DELTAS = {"text": ("text_delta", "text"), "refusal": ("text_delta", "text")} | {
    "thinking": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
_SEEN = {"id", "object", "created", "model", "choices", "usage", "service_tier"}


class _Native(Struct, rename={"own": NATIVE}):
    own: Raw = field(default_factory=Raw)
    """Empty = there is none."""


_native = msgspec.json.Decoder(_Native)
_fields = msgspec.json.Decoder(dict[str, Raw])


class MessagesDialect:
    """Implements `contract.Dialect`."""

    name, prefix, recorded = "messages", "msg_", True

    def read(self, body: bytes, limits: Limits, caller: Caller) -> Chat:
        return chat_of(body, limits)

    def whole(self, asked: Asked, body: bytes) -> bytes:
        if len(own := _native.decode(body).own):
            return msgspec.json.encode(_renamed(own, asked.response_id, asked.answers))
        said: dict[str, Any] = msgspec.json.decode(body)
        choice = first_choice(said)
        message = {
            "id": said["id"],
            "type": "message",
            "role": "assistant",
            "model": said["model"],
            "content": [_content(block) for block in blocks_of(choice["message"])],
            **_stopped(asked.chat, choice, calls=bool(choice["message"].get("tool_calls"))),
            "usage": _usage(said.get("usage")),
        }
        more = {key: value for key, value in said.items() if key not in _SEEN}
        return msgspec.json.encode({**message, **more})

    def stream(self, asked: Asked) -> "SpeakingMessages":
        return SpeakingMessages(asked)

    def refuse(self, error: ApiError) -> bytes:
        return _error(error)


class CountTokensDialect(MessagesDialect):
    """How long a prompt is: whoever would answer is asked for one token and says what it counted.
    Nothing is recorded: nobody reads that answer."""

    name, recorded = "messages.count_tokens", False

    def read(self, body: bytes, limits: Limits, caller: Caller) -> Chat:
        chat = chat_of(body, limits, max_tokens=1, stream=False)
        if chat.native is not None:
            # It must have room for its thoughts, which are not part of the prompt.
            chat.native.fields.pop("thinking", None)
        return chat

    def whole(self, asked: Asked, body: bytes) -> bytes:
        count = counted(msgspec.json.decode(body).get("usage"), "prompt_tokens")
        if not count:
            raise EngineError("what answers does not count tokens")
        return msgspec.json.encode({"input_tokens": count})


class SpeakingMessages:
    """Implements `contract.Speaking`."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._blocks = Blocks()
        self._choice: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        self._begun = self._own = False

    def say(self, event: bytes) -> bytes:
        if len(own := _native.decode(event).own):
            self._own = True
            return self._passed_on(own)
        chunk: dict[str, Any] = msgspec.json.decode(event)
        said = b"" if self._begun else self._start(chunk)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            reason = choice.get("finish_reason") or self._choice.get("finish_reason")
            self._choice = {**choice, "finish_reason": reason}
            steps = self._blocks.feed(choice.get("delta") or {})
            said += b"".join(map(_step, steps))
        return said

    def comment(self, event: bytes) -> bytes:
        return _event("ping", {})

    def end(self) -> bytes:
        if self._own:
            return b""
        calls = any(block.kind == "call" for block in self._blocks.all)
        stopped = _stopped(self._asked.chat, self._choice, calls=calls)
        last = _event("message_delta", {"delta": stopped, "usage": _usage(self._usage)})
        steps = b"".join(map(_step, self._blocks.finish()))
        return steps + last + _event("message_stop", {})

    def fail(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + _error(error) + b"\n\n"

    def _start(self, chunk: dict[str, Any]) -> bytes:
        """The prompt's tokens are known at the end: the last event's counts replace these."""
        self._begun = True
        message = {
            "id": chunk["id"],
            "type": "message",
            "role": "assistant",
            "model": chunk["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(chunk.get("usage") or {"prompt_tokens": 0, "completion_tokens": 0}),
        }
        return _event("message_start", {"message": message})

    def _passed_on(self, own: Raw) -> bytes:
        fields: dict[str, Any] = dict(_fields.decode(own))
        kind = msgspec.json.decode(fields.get("type", b'""'))
        if kind == "message_start" and "message" in fields:
            named = _renamed(fields["message"], self._asked.response_id, self._asked.answers)
            own = Raw(msgspec.json.encode({**fields, "message": named}))
        return b"event: " + str(kind).encode() + b"\ndata: " + bytes(own) + b"\n\n"


def _step(step: Step) -> bytes:
    block = step.block
    index = {"index": block.place}
    if step.what == "begin":
        return _event("content_block_start", {**index, "content_block": _content(block, new=True)})
    if step.what == "end":
        return _event("content_block_stop", index)
    kind, key = _DELTAS[block.kind]
    return _event("content_block_delta", {**index, "delta": {"type": kind, key: step.piece}})


def _content(block: Block, *, new: bool = False) -> dict[str, Any]:
    """`new`: as it begins, with nothing in it."""
    text = "" if new else block.text
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": text, "signature": ""}
    if block.kind == "call":
        block.id = block.id or f"toolu_{new_ulid().lower()}"
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(text)}
    return {"type": "text", "text": text}


def _input(arguments: str) -> Any:
    """Arguments that are no JSON object stay readable in one."""
    try:
        given = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        given = None
    return given if isinstance(given, dict) else {"arguments": arguments}


def _stopped(chat: Chat, choice: dict[str, Any], *, calls: bool) -> dict[str, Any]:
    reason, sequence = choice.get("finish_reason"), choice.get("stop_reason")
    stop = chat.request.stop or []
    matched = sequence if sequence in ([stop] if isinstance(stop, str) else stop) else None
    said = _REASONS.get(str(reason), "end_turn") if reason else None
    if said == "end_turn":
        said = "tool_use" if calls else "stop_sequence" if matched else said
    return {"stop_reason": said, "stop_sequence": matched if said == "stop_sequence" else None}


def _usage(said: dict[str, Any] | None) -> dict[str, Any]:
    """None = the engine did not count."""
    read = counted(said, "prompt_tokens_details", "cached_tokens")
    written = counted(said, "prompt_tokens_details", "cache_write_tokens")
    prompt = counted(said, "prompt_tokens")
    return {
        "input_tokens": None if prompt is None else prompt - (read or 0) - (written or 0),
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": counted(said, "completion_tokens"),
    }


def _renamed(message: Raw, response_id: str, model: str) -> dict[str, Any]:
    return {**_fields.decode(message), "id": response_id, "model": model}


def _event(kind: str, content: dict[str, Any]) -> bytes:
    data = msgspec.json.encode({"type": kind, **content})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def _error(error: ApiError) -> bytes:
    usual = "invalid_request_error" if error.status < 500 else "api_error"
    said = {"type": _ERRORS.get(error.status, usual), "message": error.message}
    if error.code:
        said["code"] = error.code
    return msgspec.json.encode({"type": "error", "error": said})

"""Anthropic's Messages as chat completions, whole and event by event.

Enters what the vendor said; leaves the chat form. Counts follow OpenAI's convention: cached tokens
are part of the prompt's (there they stand beside it). `native`: the vendor's own words ride along
as `NATIVE`. Invariant: a block that the chat form has no word for stays readable, as it came.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from serving.answer import decode_mended
from serving.chat import NATIVE
from serving.stream import Events, data_of

_DONE = b"data: [DONE]\n\n"
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_THOUGHTS = ("thinking", "redacted_thinking")
_KNOWN = ("text", "tool_use", *_THOUGHTS)


class Message(Struct):
    id: str = ""
    model: str = ""
    content: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: dict[str, Any] | None = None


class Event(Struct):
    type: str = ""
    index: int = 0
    message: Message | None = None
    content_block: dict[str, Any] | None = None
    delta: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    error: Any = None


_message = msgspec.json.Decoder(Message)
_event = msgspec.json.Decoder(Event)


def whole_answer(body: bytes, *, native: bool) -> bytes:
    """
    Raises:
        EngineError: it is no message.
    """
    said, body = decode_mended(body, _message)
    choice = {
        "index": 0,
        "message": _chat_message(said.content),
        "finish_reason": finish_reason(said.stop_reason),
        "stop_reason": said.stop_sequence or said.stop_reason,
        "logprobs": None,
    }
    return msgspec.json.encode(
        {
            "id": said.id,
            "object": "chat.completion",
            "created": 0,
            "model": said.model,
            "choices": [choice],
            "usage": usage_of(said.usage),
            **({NATIVE: Raw(body)} if native else {}),
        }
    )


def finish_reason(said: str | None) -> str | None:
    """One that is new to us is a stop: the vendor said that the message is whole."""
    return None if said is None else _REASONS.get(said, "stop")


def usage_of(said: dict[str, Any] | None) -> dict[str, Any] | None:
    """In OpenAI's convention. None = the vendor did not say."""
    if not said:
        return None
    fresh, answer = said.get("input_tokens"), said.get("output_tokens")
    read, written = said.get("cache_read_input_tokens"), said.get("cache_creation_input_tokens")
    prompt = None if fresh is None else fresh + (read or 0) + (written or 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": None if prompt is None or answer is None else prompt + answer,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
    }


def _chat_message(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    thoughts = [block for block in blocks if block.get("type") in _THOUGHTS]
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    others = [block for block in blocks if block.get("type") not in _KNOWN]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    if thoughts:
        message["reasoning_content"] = "".join(str(one.get("thinking", "")) for one in thoughts)
        message["thinking_blocks"] = thoughts
    if calls:
        message["tool_calls"] = [_chat_call(block) for block in calls]
    if others:
        message["blocks"] = others
    return message


def _chat_call(block: dict[str, Any]) -> dict[str, Any]:
    arguments = msgspec.json.encode(block.get("input") or {}).decode()
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


class MessagesStream:
    """Implements `contract.Turning`."""

    def __init__(self, *, native: bool) -> None:
        self._native = native
        self._events = Events()
        self._id = self._model = ""
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        """What came of a call's arguments, by its block."""
        self._calls: dict[int, int] = {}
        """Place of a tool call among the calls, by its block."""

    def feed(self, piece: bytes) -> bytes:
        return b"".join(out for event in self._events.feed(piece) for out in self._turned(event))

    def _turned(self, event: bytes) -> Iterator[bytes]:
        payload = data_of(event)
        if payload is None:
            yield event + b"\n\n"
            return
        said, payload = decode_mended(payload, _event)
        if said.type == "error":
            yield b"data: " + msgspec.json.encode({"error": said.error}) + b"\n\n"
            return
        chunks = list(self._chunks(said))
        if self._native:
            # The vendor's event rides on the first of them; where there is none, alone.
            chunks = chunks or [{"choices": []}]
            chunks[0][NATIVE] = Raw(payload)
        for chunk in chunks:
            yield b"data: " + msgspec.json.encode(self._whole(chunk)) + b"\n\n"
        if said.type == "message_stop":
            yield _DONE

    def _whole(self, chunk: dict[str, Any]) -> dict[str, Any]:
        head = {"id": self._id, "object": "chat.completion.chunk", "created": 0}
        return {**head, "model": self._model, **chunk}

    def _chunks(self, said: Event) -> Iterator[dict[str, Any]]:
        if said.type == "message_start" and said.message is not None:
            self._id, self._model = said.message.id, said.message.model
            self._usage = dict(said.message.usage or {})
            yield _delta({"role": "assistant", "content": ""})
        elif said.type == "content_block_start" and said.content_block is not None:
            yield from self._begun(said.index, dict(said.content_block))
        elif said.type == "content_block_delta":
            yield from self._grown(said.index, said.delta)
        elif said.type == "content_block_stop":
            yield from self._ended(said.index)
        elif said.type == "message_delta":
            self._usage |= {name: n for name, n in (said.usage or {}).items() if n is not None}
            reason = finish_reason(said.delta.get("stop_reason"))
            chunk = _delta({}, reason)
            chunk["choices"][0]["stop_reason"] = said.delta.get("stop_reason")
            yield {**chunk, "usage": usage_of(self._usage)} if self._native else chunk
            if not self._native:
                yield {"choices": [], "usage": usage_of(self._usage)}

    def _begun(self, index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self._blocks[index] = block
        kind = block.get("type")
        if kind == "tool_use":
            place = self._calls[index] = len(self._calls)
            function = {"name": block.get("name"), "arguments": ""}
            call = {"index": place, "id": block.get("id"), "type": "function", "function": function}
            yield _delta({"tool_calls": [call]})
        elif kind == "text" and block.get("text"):
            yield _delta({"content": block["text"]})

    def _grown(self, index: int, delta: dict[str, Any]) -> Iterator[dict[str, Any]]:
        block, kind = self._blocks.setdefault(index, {}), delta.get("type")
        if kind == "text_delta":
            yield _delta({"content": delta.get("text", "")})
        elif kind == "input_json_delta":
            part = delta.get("partial_json", "")
            self._inputs[index] = self._inputs.get(index, "") + part
            if part and index in self._calls:
                yield self._arguments(index, part)
        elif kind == "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta.get("thinking", "")
            yield _delta({"reasoning_content": delta.get("thinking", "")})
        elif kind == "signature_delta":
            block["signature"] = delta.get("signature")

    def _ended(self, index: int) -> Iterator[dict[str, Any]]:
        """Lists have all so far: whoever puts deltas together keeps the last one."""
        block, given = self._blocks.get(index, {}), self._inputs.get(index)
        kind, blocks = block.get("type"), self._blocks.values()
        if kind == "tool_use":
            if not given:
                given = msgspec.json.encode(block.get("input") or {}).decode()
                yield self._arguments(index, given)
        elif kind in _THOUGHTS:
            yield _delta({"thinking_blocks": [b for b in blocks if b.get("type") in _THOUGHTS]})
        elif kind not in _KNOWN:
            if given:
                block["input"] = given
            yield _delta({"blocks": [b for b in blocks if b.get("type") not in _KNOWN]})

    def _arguments(self, index: int, part: str) -> dict[str, Any]:
        call = {"index": self._calls[index], "function": {"arguments": part}}
        return _delta({"tool_calls": [call]})


def _delta(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

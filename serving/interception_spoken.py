"""Answers to prompts of token ids, in the form of the chat route.

Enters: what /v1/completions answers. Leaves: the same as a chat completion, whole or in chunks: the
text is parsed from the sampled ids, by the renderer that made the prompt. In a stream what may be
part of a call or of reasoning is shown at its end; ids and log-probabilities come as they come.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from flywheel.records import Message, Reasoning
from serving.answer import decode_mended
from serving.dialects.chat import DONE
from serving.passing import Replying
from serving.refusal import ApiError
from serving.stream import Events, data_of

Parse = Callable[[Sequence[int]], Awaitable[tuple[Message, bool]]]
"""Sampled ids -> the message, and whether a stop token ended it."""


class _Logprobs(Struct):
    token_logprobs: list[float | None] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(Struct):
    index: int = 0
    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Completion(Struct):
    choices: list[_Choice] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    id: str | None = None
    created: int = 0
    error: Any = None


_completion = msgspec.json.Decoder(_Completion)


class _Growing(Struct):
    """One choice of a stream so far."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    over: bool = False


class Spoken:
    """A reply of /v1/completions as `Replying`."""

    def __init__(self, reply: Replying, parse: Parse, name: str, stops: bool) -> None:
        """
        Args:
            name: what calls without an id of their own are named by.
            stops: whether the request has stop strings: an answer that one ended is not parsed.
        """
        self.is_stream = reply.is_stream
        self._reply, self._parse, self._name, self._stops = reply, parse, name, stops
        self._events = Events()
        self._growing: dict[int, _Growing] = {}
        self._cut: ApiError | None = None
        self._ended = False

    async def finish(self) -> None:
        await self._reply.finish()

    async def read(self) -> bytes:
        answer, _ = decode_mended(await self._reply.read(), _completion)
        choices = []
        for choice in answer.choices:
            message, finish = await self._said(
                choice.index, choice.token_ids or [], choice.text, choice.finish_reason
            )
            choices.append({**_streams(choice), "message": message, "finish_reason": finish})
        prompt = next((one.prompt_token_ids for one in answer.choices), None)
        whole = {**_envelope(answer, "chat.completion"), "choices": choices, "usage": answer.usage}
        return msgspec.json.encode({**whole, "prompt_token_ids": prompt})

    async def piece(self) -> bytes:
        while not self._ended:
            try:
                data = await self._reply.piece()
            except ApiError as error:
                self._cut, data = error, b""
            self._ended = not data
            events = [await self._event(event) for event in self._events.feed(data)]
            if self._ended:
                events.append(self._unfinished())
            if out := b"".join(events):
                return out
        if self._cut is not None:
            raise self._cut
        return b""

    async def _event(self, event: bytes) -> bytes:
        payload = data_of(event)
        if payload is None:
            return event + b"\n\n"
        if payload == b"[DONE]":
            return DONE
        chunk, payload = decode_mended(payload, _completion)
        if chunk.error is not None:
            return b"data: " + payload + b"\n\n"
        out = {**_envelope(chunk, "chat.completion.chunk"), "usage": chunk.usage}
        out["choices"] = [await self._delta(choice) for choice in chunk.choices]
        prompts = [one.prompt_token_ids for one in chunk.choices if one.prompt_token_ids]
        if prompts:
            out["prompt_token_ids"] = prompts[0]
        return b"data: " + msgspec.json.encode(out) + b"\n\n"

    async def _delta(self, choice: _Choice) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        growing = self._growing.get(choice.index)
        if growing is None:
            growing = self._growing[choice.index] = _Growing()
            delta = {"role": "assistant", "content": ""}
        growing.ids += choice.token_ids or []
        growing.text += choice.text
        finish = choice.finish_reason or None
        if finish is not None:
            growing.over = True
            message, finish = await self._said(choice.index, growing.ids, growing.text, finish)
            for number, call in enumerate(message.get("tool_calls", ())):
                call["index"] = number
            delta |= {key: value for key, value in message.items() if value is not None}
        return {**_streams(choice), "delta": delta, "finish_reason": finish}

    def _unfinished(self) -> bytes:
        """What a stream that broke off had said: nobody will parse it any more."""
        left = [(index, one.text) for index, one in self._growing.items() if not one.over]
        choices = [{"index": index, "delta": {"content": text}} for index, text in left if text]
        if not choices:
            return b""
        return b"data: " + msgspec.json.encode({"choices": choices}) + b"\n\n"

    async def _said(
        self, index: int, ids: Sequence[int], text: str, finish: str | None
    ) -> tuple[dict[str, Any], str | None]:
        message, ended = await self._parse(ids)
        if self._stops and finish == "stop" and not ended:
            return {"role": "assistant", "content": text}, finish
        said: dict[str, Any] = {"role": "assistant", "content": message.text}
        for part in message.parts:
            if isinstance(part, Reasoning):
                said["reasoning_content"] = part.text
        if calls := message.tool_calls:
            said["content"] = message.text or None
            said["tool_calls"] = [
                {
                    "id": call.id or f"{self._name}-{index}-{number}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for number, call in enumerate(calls)
            ]
            finish = "tool_calls" if finish == "stop" else finish
        return said, finish


def _envelope(answer: _Completion, kind: str) -> dict[str, Any]:
    return {"id": answer.id, "object": kind, "created": answer.created}


def _streams(choice: _Choice) -> dict[str, Any]:
    """The second stream of a choice, in the chat route's form."""
    found = choice.logprobs
    content: list[dict[str, Any]] | None = None
    if found is not None and None not in found.token_logprobs:
        tops = found.top_logprobs or [None] * len(found.token_logprobs)
        names = found.tokens or [""] * len(found.token_logprobs)
        content = [
            {"token": name, "logprob": logprob, "bytes": None, "top_logprobs": _top(top)}
            for name, logprob, top in zip(names, found.token_logprobs, tops, strict=False)
        ]
    logprobs = None if content is None else {"content": content}
    return {"index": choice.index, "token_ids": choice.token_ids, "logprobs": logprobs}


def _top(top: dict[str, float] | None) -> list[dict[str, Any]]:
    return [
        {"token": name, "logprob": logprob, "bytes": None} for name, logprob in (top or {}).items()
    ]

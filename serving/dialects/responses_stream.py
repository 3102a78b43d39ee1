"""A response on its way to its client, event by event, each with its sequence number.

Enter chunks of the chat form; leave the events of OpenAI's Responses. Invariant: every item and
part that is added is also done, and the last event alone says that the response is whole.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Raw

from serving.capture import Asked
from serving.dialects.blocks import Blocks, Step
from serving.dialects.responses_words import event, item, item_id, message_left, part, response
from serving.refusal import ApiError

Keep = Callable[[Asked, dict[str, Any], dict[str, Any]], bytes]
_DELTAS = {
    "text": "output_text",
    "refusal": "refusal",
    "thinking": "reasoning_text",
    "call": "function_call_arguments",
}
_WHOLE = {"text": "text", "refusal": "refusal", "thinking": "text", "call": "arguments"}
_SEEN = {"id", "object", "created", "model", "choices", "usage", "service_tier"}


class SpeakingResponses:
    """Implements `contract.Speaking`."""

    def __init__(self, asked: Asked, keep: Keep) -> None:
        self._asked, self._keep = asked, keep
        self._number = 0
        self._blocks = Blocks()
        self._items: list[dict[str, Any]] = []
        self._logprobs: list[Any] = []
        """Of the block that is open."""
        self._reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._more: dict[str, Any] = {}

    def say(self, event: bytes) -> bytes:
        chunk: dict[str, Any] = msgspec.json.decode(event)
        said = b"" if self._number else self._start()
        self._usage = chunk.get("usage") or self._usage
        self._more |= {key: value for key, value in chunk.items() if key not in _SEEN}
        for choice in chunk.get("choices") or ():
            self._reason = choice.get("finish_reason") or self._reason
            logprobs = (choice.get("logprobs") or {}).get("content")
            said += self._told(self._blocks.feed(choice.get("delta") or {}, logprobs))
        return said

    def comment(self, event: bytes) -> bytes:
        return event + b"\n\n"

    def end(self) -> bytes:
        said = b"" if self._number else self._start()
        said += self._told(self._blocks.finish())
        whole = response(self._asked, self._items, self._reason, self._usage, self._more)
        kind = f"response.{whole['status']}"
        kept = self._keep(self._asked, whole, message_left(self._blocks.all))
        return said + self._event(kind, {"response": Raw(kept)})

    def fail(self, error: ApiError) -> bytes:
        """What came so far stands in it as incomplete."""
        begun = [block for block in self._blocks.all if block.begun]
        items = [item(self._asked.response_id, block, "incomplete") for block in begun]
        items[: len(self._items)] = self._items
        why = {"code": error.code or "server_error", "message": error.message}
        failed = response(
            self._asked, items, None, self._usage, self._more, status="failed", error=why
        )
        return self._event("response.failed", {"response": failed})

    def _start(self) -> bytes:
        begun = response(self._asked, [], None, None, status="in_progress")
        return b"".join(
            self._event(f"response.{kind}", {"response": begun})
            for kind in ("created", "in_progress")
        )

    def _told(self, steps: list[Step]) -> bytes:
        return b"".join(said for step in steps for said in self._step(step))

    def _step(self, step: Step) -> Iterator[bytes]:
        block, response_id = step.block, self._asked.response_id
        place = {"output_index": block.place}
        inner = {**place, "item_id": item_id(response_id, block)}
        if block.kind != "call":
            inner["content_index"] = 0
        if step.what == "begin":
            self._logprobs = []
            begun = item(response_id, block, "in_progress")
            yield self._event("response.output_item.added", {**place, "item": begun})
            if block.kind != "call":
                empty = part(block, "")
                yield self._event("response.content_part.added", {**inner, "part": empty})
            return
        name = f"response.{_DELTAS[block.kind]}"
        if step.what == "grow":
            self._logprobs += step.logprobs
            said: dict[str, Any] = {"delta": step.piece}
            if block.kind == "text":
                said["logprobs"] = list(step.logprobs)
            yield self._event(f"{name}.delta", {**inner, **said})
            return
        done: dict[str, Any] = {_WHOLE[block.kind]: block.text}
        if block.kind == "text":
            done["logprobs"] = self._logprobs
        if block.kind == "call":
            done["name"] = block.name
        yield self._event(f"{name}.done", {**inner, **done})
        if block.kind != "call":
            whole = part(block, block.text, self._logprobs)
            yield self._event("response.content_part.done", {**inner, "part": whole})
        ended = item(response_id, block, "completed", self._logprobs)
        self._items.append(ended)
        yield self._event("response.output_item.done", {**place, "item": ended})

    def _event(self, kind: str, content: dict[str, Any]) -> bytes:
        self._number += 1
        return event(kind, self._number - 1, content)

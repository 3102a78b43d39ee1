"""An answer of the chat form as blocks, one after the other: thoughts, text, a refusal, calls.

Enter the deltas of one choice, or its whole message; leave steps: a block begins, grows, ends.
Invariant: one block is open at a time and none begins twice. Parallel calls whose pieces come mixed
wait for each other: a call is over once its arguments are whole JSON and another one has begun.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from flywheel.errors import EngineError

Kind = Literal["thinking", "text", "refusal", "call"]
_TEXTS: tuple[tuple[str, Kind], ...] = (
    ("reasoning_content", "thinking"),
    ("reasoning", "thinking"),
    ("content", "text"),
    ("refusal", "refusal"),
)


class Block(Struct):
    kind: Kind
    place: int
    """Among the answer's blocks."""
    index: Any = None
    """Of a call: what the engine knows it by."""
    id: str | None = None
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    """What came so far; of a call, its arguments."""
    logprobs: list[Any] = field(default_factory=list)
    told: int = 0
    """Pieces that steps have told of."""
    begun: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Step(NamedTuple):
    what: Literal["begin", "grow", "end"]
    block: Block
    piece: str = ""
    logprobs: tuple[Any, ...] = ()


class Blocks:
    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open = 0
        """Place of the block that is told of now."""

    def feed(self, delta: dict[str, Any], logprobs: list[Any] | None = None) -> list[Step]:
        for key, kind in _TEXTS:
            if isinstance(piece := delta.get(key), str) and piece:
                block = self._text(kind)
                block.pieces.append(piece)
                if kind == "text" and logprobs:
                    block.logprobs += logprobs
        for part in _calls(delta):
            self._call(part)
        return list(self._steps(last=False))

    def finish(self) -> list[Step]:
        """All that is left to tell."""
        return list(self._steps(last=True))

    def _text(self, kind: Kind) -> Block:
        """The last block, where it is of that kind: text after a call is another block."""
        if not self.all or self.all[-1].kind != kind:
            self.all.append(Block(kind, len(self.all)))
        return self.all[-1]

    def _call(self, part: dict[str, Any]) -> None:
        index, call_id = part.get("index"), part.get("id")
        calls = [block for block in self.all if block.kind == "call"]
        same = [block for block in calls if index is not None and block.index == index]
        if not same and index is None and not call_id:
            same = calls[-1:]
        if not same:
            same = [Block("call", len(self.all), index)]
            self.all += same
        block, function = same[0], part.get("function")
        block.id = block.id or (call_id if isinstance(call_id, str) else None)
        if isinstance(function, dict):
            name, arguments = function.get("name"), function.get("arguments")
            # Some engines repeat the whole name with every fragment.
            if isinstance(name, str) and name != block.name:
                block.name += name
            if isinstance(arguments, str) and arguments:
                block.pieces.append(arguments)

    def _steps(self, *, last: bool) -> Iterator[Step]:
        while self._open < len(self.all):
            block = self.all[self._open]
            if not block.begun:
                if block.kind == "call" and not block.name and not last:
                    return
                block.begun = True
                yield Step("begin", block)
            yield from _grown(block)
            waiting = self._open + 1 < len(self.all)
            if not last and not (waiting and _over(block)):
                return
            self._open += 1
            yield Step("end", block)


def blocks_of(message: dict[str, Any]) -> list[Block]:
    """Of a whole message."""
    blocks = Blocks()
    calls = [{**call, "index": place} for place, call in enumerate(_calls(message))]
    blocks.feed({**message, "tool_calls": calls})
    return blocks.all


def first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    """Of a whole answer of the chat form.

    Raises:
        EngineError: it has none.
    """
    choices = answer.get("choices")
    if not choices:
        raise EngineError("the engine's answer is empty: it has no choices")
    choice: dict[str, Any] = choices[0]
    return choice


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _grown(block: Block) -> Iterator[Step]:
    """Log-probabilities go with the first piece that is told of since they came."""
    for piece in block.pieces[block.told :]:
        logprobs, block.logprobs = tuple(block.logprobs), []
        yield Step("grow", block, piece, logprobs)
    block.told = len(block.pieces)


def _over(block: Block) -> bool:
    if block.kind != "call":
        return True
    text = block.text.rstrip()
    if not text.endswith("}"):
        return False
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True

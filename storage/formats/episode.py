"""What an agent did, step by step, as spans: model calls with all before them, tools as they ran.

A format tells its steps in order; spans leave. Ids are numbered where the source has none, so that
their order is the steps' also without times. Each call repeats all before it, so that past
MOST_TURNS, or MOST_REPEATED, only the last one of a history holds its input; the others say how
many messages it had.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from flywheel.ids import digest
from flywheel.records import (
    Choice,
    Message,
    ModelCall,
    Sampling,
    Span,
    SpanKind,
    ToolCall,
    ToolResult,
    Trace,
    Usage,
    trace_id,
)  # fmt: skip

from .parsed import Context
from .turns import MOST_TURNS

MOST_REPEATED = 32 << 20
"""Characters that the inputs of one episode's calls may have together."""
_NOTHING_ASKED = Sampling()
_UNSAID = Usage(reason="not reported")


class Past:
    """Messages so far. One that grows from another shares its list; where two grow from one, the
    second begins a list of its own and only points back."""

    __slots__ = ("_base", "_own", "_size", "chars", "count")

    def __init__(self, messages: Iterable[Message] = (), base: "Past | None" = None) -> None:
        self._base, self._own = base, list(messages)
        self._size = len(self._own)
        self.count: int = self._size + (base.count if base else 0)
        self.chars: int = sum(map(_size, self._own)) + (base.chars if base else 0)

    def plus(self, *messages: Message) -> "Past":
        if len(self._own) != self._size:
            return Past(messages, self)
        grown = Past()
        grown._base, grown._own = self._base, self._own
        grown._own.extend(messages)
        grown._size = len(grown._own)
        grown.count = self.count + len(messages)
        grown.chars = self.chars + sum(map(_size, messages))
        return grown

    def messages(self) -> tuple[Message, ...]:
        pieces: list[list[Message]] = []
        past: Past | None = self
        while past is not None:
            pieces.append(past._own[: past._size])
            past = past._base
        return tuple(one for piece in reversed(pieces) for one in piece)

    def history(self) -> int:
        """The same for all that share one list."""
        return id(self._own)


class Episode:
    """The steps of one agent; the spans of its sub-agents may be among them."""

    def __init__(
        self,
        *,
        tools: tuple[dict[str, Any], ...] | None = None,
        model: str | None = None,
        sampling: Sampling = _NOTHING_ASKED,
    ) -> None:
        self.tools, self.model, self.sampling = tools, model, sampling
        self.past = Past()
        self.parents: tuple[str, ...] = ()
        """What the next model calls hang on."""
        self.last = ""
        """Id of the last model call."""
        self._answered = 0
        """Messages of the past that calls have seen or said."""
        self._spans: list[Span] = []
        self._pasts: dict[int, Past] = {}

    def hear(self, *messages: Message) -> None:
        """What the model will see with its next call."""
        self.past = self.past.plus(*messages)

    def numbered(self) -> str:
        return f"{len(self._spans):06d}"

    def span(self, kind: SpanKind, name: str, *, id: str | None = None, **fields: Any) -> str:
        """Any other span: an agent, an event. Returns its id."""
        id = id or self.numbered()
        fields.setdefault("parents", self.parents)
        self._spans.append(Span(id=id, kind=kind, name=name, **fields))
        return id

    def add(self, span: Span) -> None:
        """A span as it is."""
        self._spans.append(span)

    def answer(
        self,
        choices: Sequence[Choice],
        *,
        id: str | None = None,
        past: Past | None = None,
        parents: tuple[str, ...] | None = None,
        name: str = "chat",
        start: int | None = None,
        end: int | None = None,
        error: str | None = None,
        attributes: dict[str, Any] | None = None,
        version: int = 0,
        usage: Usage = _UNSAID,
        **call: Any,
    ) -> str:
        """A model call; its first choice joins what the next call sees. Returns its id."""
        id = id or self.numbered()
        self._pasts[len(self._spans)] = past or self.past
        fields = {"tools": self.tools, "model": self.model, "sampling": self.sampling, **call}
        self._spans.append(
            Span(
                id=id,
                kind="model",
                name=name,
                parents=self.parents if parents is None else parents,
                start=start,
                end=end,
                error=error if choices else error or "no answer was recorded",
                call=ModelCall(input=(), choices=tuple(choices), usage=usage, **fields),
                version=version,
                attributes=attributes or {},
            )
        )
        if past is None and choices:
            self.hear(choices[0].message)
        self._answered = self.past.count
        self.last = id
        return id

    def ran(
        self,
        call: ToolCall,
        result: ToolResult | None,
        *,
        parent: str | None = None,
        id: str | None = None,
        **fields: Any,
    ) -> str:
        """A tool as it ran, under the model call that asked for it. Returns its span's id."""
        above = parent or self.last
        parents = (above,) if above else self.parents
        return self.span(
            "tool", call.name, id=id, parents=parents, tool=call, result=result, **fields
        )

    def unheard(self, id: str) -> None:
        """What was told after the last answer, which no call sees, as a span of its own."""
        told = [one for one in self.past.messages()[self._answered :] if one.role == "user"]
        if told:
            self.span("other", "unheard", id=id, attributes={"messages": msgspec.to_builtins(told)})

    def seen(self) -> set[str]:
        """Digests of every message that a call saw or said, so far."""
        found: dict[int, Message] = {}
        for at, past in self._pasts.items():
            found.update((id(one), one) for one in past.messages())
            if (call := self._spans[at].call) is not None:
                found.update((id(choice.message), choice.message) for choice in call.choices)
        return {digest(one) for one in found.values()}

    def spans(self) -> tuple[Span, ...]:
        """All of them; inputs are put in where they may be repeated, later calls first."""
        histories: dict[int, list[int]] = {}
        for at, past in self._pasts.items():
            histories.setdefault(past.history(), []).append(at)
        left = MOST_REPEATED
        for calls in sorted(histories.values(), key=lambda calls: -calls[-1]):
            longest = max(calls, key=lambda at: (self._pasts[at].count, at))
            size = sum(self._pasts[at].chars for at in calls)
            whole = len(calls) <= MOST_TURNS and size <= left
            if not whole:
                size = self._pasts[longest].chars
            for at in calls:
                fits = whole or (at == longest and (size <= left or left == MOST_REPEATED))
                self._spans[at] = self._with_input(at, fits)
            left -= size if size <= left else 0
        self._pasts = {}
        return tuple(self._spans)

    def _with_input(self, at: int, fits: bool) -> Span:
        span, past = self._spans[at], self._pasts[at]
        assert span.call is not None
        if fits:
            call = msgspec.structs.replace(span.call, input=past.messages())
            return msgspec.structs.replace(span, call=call)
        attributes = {**span.attributes, "input_not_repeated": past.count}
        return msgspec.structs.replace(span, attributes=attributes)


def told(
    episode: Episode,
    messages: Sequence[Message],
    answers: dict[int, dict[str, Any]] | None = None,
    ran: dict[str, dict[str, Any]] | None = None,
    *,
    ends: bool = True,
) -> None:
    """A list of messages as steps: each of an assistant is a model call, each call that is answered
    a tool's run.

    Args:
        answers: what is known of the model call at an index, as `Episode.answer` takes it, and
            "finish_reason", and "commands": what was run for it, as pairs of a call and what
            `Episode.ran` takes. None = all messages of assistants are answers; else those named.
        ran: what is known of a tool's run by the call's id, as `Episode.ran` takes it.
        ends: whether no step follows.
    """
    known, runs = answers or {}, ran or {}
    waiting: list[tuple[str, ToolCall]] = []
    last = None
    for at, message in enumerate(messages):
        if message.role == "assistant" and (answers is None or at in known):
            last, asked = at, _answered(episode, message, known.get(at, {}))
            waiting += [(asked, call) for call in message.tool_calls]
            continue
        episode.hear(message)
        for part in message.parts:
            if isinstance(part, ToolResult) and (found := _asked(waiting, part)) is not None:
                waiting.remove(found)
                episode.ran(found[1], part, parent=found[0], **runs.get(part.id or "", {}))
    for asked, call in waiting:  # never answered: it was asked, what came of it is not known
        episode.ran(call, None, parent=asked, **runs.get(call.id or "", {}))
    if not ends:
        return
    if last is None:
        episode.answer((), error="the conversation ends without an answer")
    elif after := [one for one in messages[last + 1 :] if one.role != "tool"]:
        said = {"messages": msgspec.to_builtins(after)}
        episode.span("other", "said after the last answer", attributes=said)


def _answered(episode: Episode, message: Message, known: dict[str, Any]) -> str:
    more = dict(known)
    commands = more.pop("commands", ())
    choice = Choice(message=message, finish_reason=more.pop("finish_reason", None))
    asked = episode.answer((choice,), **more)
    for call, fields in commands:
        episode.ran(call, parent=asked, **fields)
    return asked


def _asked(waiting: list[tuple[str, ToolCall]], result: ToolResult) -> tuple[str, ToolCall] | None:
    """The call that a result answers: by its id, else the first by name or in order without ids."""
    for one in waiting:
        if result.id is not None and one[1].id == result.id:
            return one
    for one in waiting:
        unnamed = result.id is None or one[1].id is None
        if unnamed and result.name in (None, one[1].name):
            return one
    return None


def _size(message: Message) -> int:
    size = 16
    for part in message.parts:
        for text in (getattr(part, name, None) for name in ("text", "content", "arguments")):
            size += len(text) if isinstance(text, str) else 8
    return size


def imported(
    source: str, external: str, spans: tuple[Span, ...], context: Context, **fields: Any
) -> Trace:
    """The trace of one row or file, by the sender's own id."""
    return Trace(
        id=trace_id(context.project, source, external),
        project=context.project,
        source=source,
        external_id=external,
        origin="import",
        spans=spans,
        raw=context.raw,
        **fields,
    )

"""An episode while its calls are recorded, and the trace that they become.

Enters: each call's span, in the order in which they end. Leaves: one trace whose calls stand in
the order in which they began; their ids are their numbers. Invariant: after its end an episode
takes nothing in, and nothing of it goes on.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from flywheel.episodes import Access, Forced, Ticket, trace_of
from flywheel.errors import BadRecord
from flywheel.records import Span, Trace, trace_id
from serving.capture import Asked
from serving.interception_forced import ForcedChat
from serving.interception_tree import Node, Tree
from serving.refusal import ApiError

AT_ONCE = 64
"""Calls of one episode under way together."""
_END_S = 5.0
"""How long calls that were cut may take to be recorded."""


class Call(Asked, kw_only=True):
    """A request that an episode made."""

    chat: ForcedChat
    episode: "Episode"
    number: int
    """Of the episode's calls, from 0."""
    line: list[bytes]
    """`line_of` its messages."""
    tools: bytes | None
    prompt: tuple[int, ...] | None = None
    """What it is asked with: token ids that begin with the earlier call's. None = its messages."""

    @property
    def span_id(self) -> str:
        return span_id(self.number)


def span_id(number: int) -> str:
    return f"call-{number:04d}"


class Spent(ApiError):
    """The episode has made all the calls that it may."""

    def __init__(self, calls: int) -> None:
        super().__init__(
            429,
            f"the episode's budget of {calls} model calls is spent: no further call is answered",
            code="budget_spent",
        )


class Ended(ApiError):
    def __init__(self) -> None:
        super().__init__(401, "the episode of this key has ended", code="episode_ended")


class Episode:
    def __init__(self, ticket: Ticket, forced: Forced, access: Access) -> None:
        self.ticket, self.forced, self.access = ticket, forced, access
        self.trace_id = trace_id(ticket.project, ticket.source, ticket.external_id)
        self.refused: Counter[str] = Counter()
        """Requests that became no call, by their status."""
        self.over = False
        self.tree = Tree()
        self._tools: dict[bytes, tuple[dict[str, Any], ...] | None] = {}
        self._asked = 0
        self._numbers = 0
        self._spans: dict[int, Span] = {}
        self._running: set[asyncio.Task[Any]] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around one request.

        Raises:
            ApiError: 429: the budget is spent, or too many are under way.
        """
        task = asyncio.current_task()
        assert task is not None
        if self.over:
            raise Ended
        if len(self._running) >= AT_ONCE:
            raise ApiError(
                429, f"{AT_ONCE} calls of this episode are under way: come again",
                code="busy", retry_after=1,
            )  # fmt: skip
        if self._asked >= self.forced.calls:
            raise Spent(self.forced.calls)
        self._asked += 1
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)

    def number(self) -> int:
        """Of the call that begins."""
        self._numbers += 1
        return self._numbers - 1

    def keep(self, call: Call, span: Span) -> None:
        if span.call is not None and call.tools is not None:
            # The same tools in every call are held once.
            tools = self._tools.setdefault(call.tools, span.call.tools)
            span = replace(span, call=replace(span.call, tools=tools))
        self._spans[call.number] = span
        self.tree.asked(call.line, span.id)
        for choice in span.call.choices if span.call else ():
            if choice.finish_reason is not None:
                node = Node(span.id, call.tools, choice.tokens)
                self.tree.answered(call.line, choice.message, node)

    async def end(self) -> None:
        """What is under way is cut, and recorded as that."""
        self.over = True
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_END_S)

    def trace(self, spans: Sequence[Span], error: str | None) -> Trace:
        """
        Raises:
            BadRecord: one of `spans` has the id of a recorded call.
        """
        calls = [self._spans[number] for number in sorted(self._spans)]
        taken = {span_id(number) for number in range(self._numbers)}
        for span in spans:
            if span.id in taken:
                raise BadRecord(f"{span.id} is the id of a recorded call: give another", field="id")
        known = {span.id for span in (*calls, *spans)}
        attributes: dict[str, Any] = {} if error is None else {"error": error}
        if self.refused:
            attributes["refused_calls"] = dict(self.refused)
        linked = [_known_parents(span, known) for span in calls]
        return trace_of(self.ticket, [*linked, *spans], attributes)


def _known_parents(span: Span, known: set[str]) -> Span:
    """A parent that a harness named and that never came would leave the trace incomplete."""
    if known.issuperset(span.parents):
        return span
    missing = [parent for parent in span.parents if parent not in known]
    return replace(
        span,
        parents=tuple(parent for parent in span.parents if parent in known),
        attributes={**span.attributes, "unknown_parents": missing},
    )

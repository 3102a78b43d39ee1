"""An episode, as those see it who make its model calls and those who record them.

`environments` opens an episode and `serving` records it: neither imports the other, so what passes
between them stands here. Nothing in it depends on a clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flywheel.records import Origin, Span, Trace, trace_id


class Access(NamedTuple):
    """Where one episode's model is. All calls made there belong to that episode."""

    url: str
    """Ends in /v1."""
    key: str
    model: str


class Forced(NamedTuple):
    """What the run decides about every call, whatever the harness asks for."""

    temperature: float
    max_tokens: int
    """Of one answer, at most."""
    seed: int
    """Of the episode: call number n is sampled with a seed made of both."""
    top_p: float = 1.0
    calls: int = 256
    """Of the episode, at most: what is asked beyond is refused, and the refusal says why."""
    steady: bool = False
    """The same seed gives the same bits, whatever else is under way (on the embedded engine)."""


class Ticket(NamedTuple):
    """Who an episode is, before its first call."""

    project: str
    source: str
    external_id: str
    origin: Origin
    problem_id: str
    run_id: str
    attempt: int
    attributes: dict[str, Any]


def trace_of(
    ticket: Ticket, spans: Sequence[Span] = (), attributes: Mapping[str, Any] | None = None
) -> Trace:
    """The episode's trace; `attributes` stand beside the ticket's."""
    return Trace(
        id=trace_id(ticket.project, ticket.source, ticket.external_id),
        project=ticket.project,
        source=ticket.source,
        external_id=ticket.external_id,
        origin=ticket.origin,
        spans=tuple(spans),
        problem_id=ticket.problem_id,
        run_id=ticket.run_id,
        attempt=ticket.attempt,
        attributes={**ticket.attributes, **(attributes or {})},
    )

"""What every source speaks: pages of rows, each with the place from which the next one is asked."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from flywheel.records import Record
from storage.pull.asking import Server


class Span(Record, frozen=True, kw_only=True):
    """What one pull asks for. Its end is fixed when it begins, so that what comes meanwhile moves
    no page."""

    since: int | None
    """Nanoseconds since the epoch; None = from the first one on."""
    until: int


class Page(NamedTuple):
    rows: list[Any]
    """Values of the source's format."""
    next: dict[str, Any] | None
    """From where it goes on, in the source's own words; None = that was the last."""


Source: TypeAlias = Callable[[Server, str, Span, dict[str, Any] | None], Iterator[Page]]
"""A server, the project as it is called there, what is asked for, and where an earlier try came to
(None = begin). Raises: as `Server.get`."""


def iso(at: int | None) -> str | None:
    """As web APIs take moments; the nearest millisecond before."""
    if at is None:
        return None
    seconds, rest = divmod(at, 10**9)
    moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{rest // 10**6:03}Z"

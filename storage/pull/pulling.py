"""`flywheel pull`: what another platform recorded, into the store, each trace once.

Enter a source, a server and the project there; what came since the last pull goes the way of an
imported file. How far it came lies in the home, written once what came is durable: killed between
the two, the same page is asked for again, and its segment is known by its content. Invariant:
nothing is passed over, and nothing is there twice.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flywheel import durable
from flywheel.errors import CorruptFile, FlywheelError
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import digest
from flywheel.progress import report
from flywheel.records import Record
from storage import receipts
from storage.importer import ImportReport, committed, take_files
from storage.locks import held
from storage.pull import langfuse, langsmith, mlflow, phoenix
from storage.pull.asking import Server
from storage.pull.page import Page, Source, Span
from storage.tally import Tally

LATE_NS = 10 * 60 * 10**9
"""Spans come up to this much after their time: so much is asked for once more by the next pull."""
_EMPTY = 1000
"""Empty pages in a row, after which a server is held to have no end."""
ROWS, BYTES = 1000, 8 << 20
"""Of what is taken in at once; a page is never parted."""


class Kind(NamedTuple):
    pages: Source
    format: str
    """A key of FORMATS."""
    url: str | None
    """Of the vendor's own server; None = everybody runs their own."""
    keys: tuple[str, ...]
    """Variables that its keys usually stand in."""


SOURCES = {
    "langfuse": Kind(langfuse.pages, "langfuse", "https://cloud.langfuse.com",
                     ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")),
    "langsmith": Kind(langsmith.pages, "langsmith", "https://api.smith.langchain.com",
                      ("LANGSMITH_API_KEY",)),
    "mlflow": Kind(mlflow.pages, "mlflow", None, ("MLFLOW_TRACKING_TOKEN",)),
    "phoenix": Kind(phoenix.pages, "openinference", None, ("PHOENIX_API_KEY",)),
}  # fmt: skip


class Reached(Record, frozen=True, kw_only=True):
    """How far the pulls of one project came."""

    done: int | None = None
    """Until when all is here, nanoseconds since the epoch; None = no pull came to its end."""
    span: Span | None = None
    """What is being pulled; None = nothing."""
    next: dict[str, Any] | None = None
    """Where it goes on."""


class Pulled(Record, frozen=True, kw_only=True, omit_defaults=False):
    report: ImportReport
    rows: int
    """That the server gave."""
    since: int | None
    until: int
    resumed: bool
    """Whether it went on where an earlier pull was stopped."""
    asked: int
    """Requests."""
    again: int
    """Of them, those that the server put off, or that failed."""


def server_of(kind: Kind, url: str, keys: dict[str, str]) -> Server:
    """
    Args:
        keys: variable -> what stands in it, of those that are set.
    """
    where, values = ", ".join(kind.keys), [keys.get(name) for name in kind.keys]
    if len(values) == 2 and values[0] and values[1]:
        return Server(url, auth=(values[0], values[1]), keys=where)
    headers = {}
    if len(values) == 1 and values[0]:
        named = kind.format == "langsmith"
        name, before = ("x-api-key", "") if named else ("authorization", "Bearer ")
        headers = {name: before + values[0]}
    return Server(url, headers, keys=where)


def pull(
    home: Home, name: str, server: Server, theirs: str, *, project: str, since: int | None = None
) -> Pulled:
    """
    Args:
        theirs: the project as it is called there.
        since: nanoseconds since the epoch; None = from where the last pull came to.

    Raises:
        Busy: another pull of it is under way.
        UsageError, FlywheelError: as `Server.get`.
    """
    kind, key = SOURCES[name], digest(name, server.url, theirs, project)
    path = home.pulls / f"{key}.json"
    before, tally, rows = receipts.stored(home, project), Tally(), 0
    with _alone(path, f"{theirs} is being pulled already"), server:
        reached = _reached(path)
        span, resumed = _span(reached, since)
        at = reached.next if resumed else None
        for batch in _batches(_honest(kind.pages(server, theirs, span, at), server.url)):
            rows += len(batch.rows)
            tally.join(_taken(home, path, batch.rows, kind.format, project))
            failpoint("pull-taken")
            _write(path, reached, span, batch.next)
            report("pull", rows, None, f"{server.url} {theirs}")
        told = committed(home, project, before, tally)
        durable.write(path, msgspec.json.encode(Reached(done=span.until)))
    return Pulled(report=told, rows=rows, since=span.since, until=span.until, resumed=resumed,
                  asked=server.asked, again=server.waited)  # fmt: skip


def _span(reached: Reached, since: int | None) -> tuple[Span, bool]:
    """What is to be pulled, and whether that had been begun. Who names a time begins anew."""
    if reached.span is not None and since in (None, reached.span.since):
        return reached.span, True
    if since is None and reached.done is not None:
        since = reached.done - LATE_NS
    return Span(since=since, until=time.time_ns()), False


def _honest(pages: Iterator[Page], url: str) -> Iterator[Page]:
    """The pages of a server that answers as its API says, and comes to an end.

    Raises:
        FlywheelError: it does not.
    """
    seen: set[str] = set()
    empty, before = 0, ""
    while True:
        try:
            page = next(pages, None)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise FlywheelError(
                f"{url} does not answer as its API says ({type(error).__name__}: {error}): is it "
                "that platform, of a version that has it?"
            ) from error
        if page is None:
            return
        if not isinstance(page.rows, list):
            raise FlywheelError(f"{url} does not answer as its API says: a page is no list")
        place, held = digest(page.next), digest(page.rows) if page.rows else ""
        empty = 0 if page.rows else empty + 1
        if place in seen or (held and held == before) or empty > _EMPTY:
            raise FlywheelError(
                f"{url} gives the same page again, or empty ones without an end: its paging is at "
                "fault, and the pull stops here"
            )
        seen.add(place)
        before = held
        yield page


def _batches(pages: Iterator[Page]) -> Iterator[Page]:
    """Pages together, up to so many rows or bytes: a segment each."""
    rows: list[bytes] = []
    size = 0
    for page in pages:
        encoded = [msgspec.json.encode(row) for row in page.rows]
        rows += encoded
        size += sum(map(len, encoded))
        if page.next is None or len(rows) >= ROWS or size >= BYTES:
            yield Page(rows, page.next)
            rows, size = [], 0


def _taken(home: Home, path: Path, rows: list[bytes], format: str, project: str) -> Tally:
    if not rows:
        return Tally()
    page = path.with_suffix(".jsonl")
    durable.write(page, b"\n".join([*rows, b""]))
    try:
        return take_files(home, [page], project=project, format=format)
    finally:
        page.unlink(missing_ok=True)


def _write(path: Path, reached: Reached, span: Span, at: dict[str, Any] | None) -> None:
    """Not yet what is done: that is told once it is committed."""
    if at is not None:
        durable.write(path, msgspec.json.encode(Reached(done=reached.done, span=span, next=at)))


def _reached(path: Path) -> Reached:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Reached)
    except FileNotFoundError:
        return Reached()
    except msgspec.DecodeError as error:
        raise CorruptFile(
            f"{path} is no pull's state: remove it to begin anew ({error})"
        ) from error


def _alone(path: Path, busy: str) -> AbstractContextManager[None]:
    return held(path.with_suffix(".lock"), wait_s=0, busy=busy)

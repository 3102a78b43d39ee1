"""What each chunk of an imported file gave, so that a chunk that is known need not be read again.

A receipt is written after its chunk's segment; it counts only while that segment waits in the inbox
or stands in the committer's ledger. Invariant: a receipt that is lost, or of an older reader, costs
time and changes nothing.
"""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from flywheel import durable
from flywheel.home import Home
from flywheel.records import Record
from storage.database import reading
from storage.inbox import Inbox, name_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class Reject(Record, frozen=True, kw_only=True):
    """One row, or part of one, that was quarantined."""

    path: str
    line: int
    """Of JSON lines; the element's number in a document. From 1."""
    field: str | None
    """Dotted path inside the row; None = the row itself."""
    reason: str
    kept: str | None = None
    """File with its bytes, relative to the home."""


class Receipt(Record, frozen=True, kw_only=True):
    """`rejects` name lines relative to the chunk's first row, and no path."""

    traces: int
    spans: int
    feedback: int
    formats: dict[str, int]
    """Rows understood, by format."""
    unmapped: dict[str, int]
    rejects: tuple[Reject, ...]
    refused: int = 0
    raw: str = ""
    """The chunk's key in the raw store."""


class Stored(NamedTuple):
    """How much of a project's imports the database holds."""

    traces: int
    spans: int


def committed_segments(home: Home) -> frozenset[str]:
    """Names of import segments that wait or were committed."""
    waiting = _waiting(home)
    with reading(home) as database:
        return waiting | _committed(database)


def stored(home: Home, project: str) -> Stored:
    with reading(home) as database:
        return _stored(database, project)


def found(home: Home, project: str) -> tuple[frozenset[str], Stored]:
    """Both, of one look."""
    waiting = _waiting(home)
    with reading(home) as database:
        return waiting | _committed(database), _stored(database, project)


def _waiting(home: Home) -> frozenset[str]:
    named = (name_of(path) for path in Inbox(home).pending())
    return frozenset(name for name in named if name.startswith("import-"))


def _committed(database: "DuckDBPyConnection | None") -> frozenset[str]:
    if database is None:
        return frozenset()
    rows = database.execute(
        "SELECT name FROM segments WHERE starts_with(name, 'import-')"
    ).fetchall()
    return frozenset(name for (name,) in rows)


def _stored(database: "DuckDBPyConnection | None", project: str) -> Stored:
    row = (
        database
        and database.execute(
            "SELECT count(*), coalesce(sum(spans), 0) FROM traces "
            "WHERE project = ? AND origin = 'import'",
            [project],
        ).fetchone()
    )
    return Stored(int(row[0]), int(row[1])) if row else Stored(0, 0)


def load(home: Home, segment: str) -> Receipt | None:
    try:
        return msgspec.json.decode(_path(home, segment).read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError):
        return None  # read the chunk again


def save(home: Home, segment: str, receipt: Receipt) -> None:
    durable.write(_path(home, segment), msgspec.json.encode(receipt))


def drop(home: Home, raws: Collection[str]) -> int:
    """Removes the receipts of chunks that stood under `raws`: they are read again when they come
    again. Returns how many."""
    gone = 0
    for path in home.imports.glob("*.json") if raws else ():
        receipt = load(home, path.stem)
        if receipt is None or receipt.raw in ("", *raws):
            path.unlink(missing_ok=True)
            gone += 1
    return gone


def _path(home: Home, segment: str) -> Path:
    return home.imports / f"{segment}.json"

"""The store's tables, written as Parquet in pieces: what publishing puts into a lake.

Enters what was published already; leave the pieces that are planned, then each one's file, made in
an open of its own, so that commits go on meanwhile. Invariant: a piece of the same database has the
same bytes, for rows stay in the order that they lie in. Those of most tables are found by the
sequence that wrote them. Messages have none, are many, and are only ever added to: they are cut by
their place in the table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from storage import entries
from storage.published import Place

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS = 50_000
"""Of one piece, about; one transaction's rows stay together."""
MESSAGES = 500_000
"""Of one piece."""
VERSIONED = ("traces", "spans", "tokens")
_CHANGED = {"threads": 'greatest(since, coalesce("until", 0))'}
"""When a row was last another, of tables whose rows end in place."""
_OPTIONS = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, ROW_GROUP_SIZE 20480"
"""Level 3 takes twice the time for a hundredth less; small groups stay in the processor's cache."""


class Moved(Exception):
    """Messages lie at other places than planned: an erasure wrote the table anew meanwhile."""


class Span(NamedTuple):
    """Ledger sequences: after `first`, up to `last`."""

    first: int
    last: int


class Piece(NamedTuple):
    table: str
    span: Span
    start: int = 0
    """Of messages: the place of the first one,"""
    end: Place | None = None
    """and where the last one lies. None = of another table."""


def planned(database: "DuckDBPyConnection", span: Span, told: Place | None) -> list[Piece]:
    """What there is within `span`, in pieces of some rows each.

    Args:
        told: up to where messages were published.
    """
    found: list[Piece] = []
    for table in (*(one.name for one in entries.TABLES.values()), *VERSIONED, "threads"):
        changed = _CHANGED.get(table, "since")
        rows = database.execute(
            f"SELECT {changed} AS at_last, count(*) FROM {table} "
            "WHERE at_last > ? AND at_last <= ? GROUP BY at_last ORDER BY at_last",
            [span.first, span.last],
        ).fetchall()
        found += [Piece(table, one) for one in _cut(span, rows)]
    tools = [Piece("toolsets", span)] if any(one.table == "spans" for one in found) else []
    return [*found, *_messages(database, span, told), *tools]


def _cut(span: Span, rows: list[tuple[int, int]]) -> Iterator[Span]:
    """rows: (sequence, how many), in order."""
    first, held = span.first, 0
    for since, count in rows:
        held += count
        if held >= ROWS:
            yield Span(first, since)
            first, held = since, 0
    if held:
        yield Span(first, span.last)


def _messages(database: "DuckDBPyConnection", span: Span, told: Place | None) -> Iterator[Piece]:
    start = told.rows if told is not None and _lies(database, told) else 0
    ends = database.execute(
        "SELECT max(rowid) + 1, arg_max(id, rowid) FROM messages WHERE rowid >= ? "
        "GROUP BY rowid // ? ORDER BY 1",
        [start, MESSAGES],
    ).fetchall()
    for rows, id in ends:
        yield Piece("messages", span, start, Place(rows=rows, id=id))
        start = rows


def _lies(database: "DuckDBPyConnection", place: Place) -> bool:
    """Whether that message is still where it was, and so are those before it."""
    found = database.execute("SELECT id FROM messages WHERE rowid = ?", [place.rows - 1])
    return found.fetchall() == [(place.id,)]


def written(database: "DuckDBPyConnection", piece: Piece, path: Path) -> int:
    """Writes a piece's rows; returns how many.

    Raises:
        Moved: plan it again.
    """
    if piece.end is not None and not _lies(database, piece.end):
        raise Moved
    # One thread takes less of the processor for it. A sort by keys, which are random, took a
    # seventh of publishing.
    database.execute("SET threads = 1; SET preserve_insertion_order = true")
    quoted = str(path).replace("'", "''")
    found = database.execute(f"COPY ({_query(piece)}) TO '{quoted}' ({_OPTIONS})").fetchall()
    return int(found[0][0])


def _query(piece: Piece) -> str:
    """The rows that a reader at the end of the piece's span needs of it."""
    table, (first, last) = piece.table, piece.span
    if piece.end is not None:
        return f"SELECT * FROM messages WHERE rowid >= {piece.start} AND rowid < {piece.end.rows}"
    within = f"since > {first} AND since <= {last}"
    if table in VERSIONED:  # what was replaced after this span stood at its end
        return (
            f"SELECT * FROM {table} WHERE {within} "
            f'UNION ALL SELECT * EXCLUDE ("until") FROM {table}_history '
            f'WHERE {within} AND "until" > {last}'
        )
    if table == "toolsets":
        return f"""SELECT * FROM toolsets WHERE id IN (SELECT tools FROM spans WHERE {within}
            UNION ALL SELECT tools FROM spans_history WHERE {within})"""
    changed = _CHANGED.get(table, "since")
    return f"SELECT * FROM {table} WHERE {changed} > {first} AND {changed} <= {last}"

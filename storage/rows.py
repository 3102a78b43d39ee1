"""Rows into and out of DuckDB in bulk, inside the caller's transaction: Arrow in, tuples out.

Enter rows as tuples beside their columns; leave rows in tables. Nothing is inserted one by one.
"""

import contextlib
import gc
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flywheel.records import Trace
from storage import columns
from storage.arrow import array_of
from storage.assembled import assemble

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

VERSIONED = ("traces", "spans", "tokens")
"""Tables whose replaced rows stay in their _history."""
_LARGEST_BLOCK = "5GB"
"""Of memory, to read 2048 texts of the largest size that records keep."""


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Without the cycle collector, which would walk thousands of traces again and again for cycles
    that they cannot have."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def table_of(shape: dict[str, str], rows: Collection[Sequence[Any]]) -> "pa.Table":
    """`rows` as an Arrow table with the columns and DuckDB types of `shape`.

    Raises:
        OverflowError, TypeError, ValueError: a value does not fit its column.
    """
    import pyarrow as pa

    values: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(shape)
    made = [array_of(one, kind) for one, kind in zip(values, shape.values(), strict=True)]
    return pa.Table.from_arrays(made, names=list(shape))


def insert(
    database: "DuckDBPyConnection",
    table: str,
    shape: dict[str, str],
    rows: Collection[Sequence[Any]],
) -> None:
    if rows:
        with seen_as(database, "incoming", table_of(shape, rows)):
            database.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")


def unknown(
    database: "DuckDBPyConnection", table: str, kind: str, keys: Collection[Any], *, key: str = "id"
) -> set[Any]:
    """Which of `keys` have no row in `table`."""
    if not keys:
        return set()
    with seen_as(database, "incoming", table_of({"wanted_key": kind}, [(one,) for one in keys])):
        found = database.execute(
            f"SELECT {key} FROM {table} WHERE {key} IN (SELECT wanted_key FROM incoming)"
        ).fetchall()
    return set(keys) - {one for (one,) in found}


def fetch(database: "DuckDBPyConnection", table: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of `table` with these ids."""
    if not ids:
        return []
    with seen_as(database, "wanted", table_of({"wanted_id": "VARCHAR"}, [(one,) for one in ids])):
        return named(
            database, f"SELECT * FROM {table} WHERE id IN (SELECT wanted_id FROM wanted)", {}
        )


def remove(database: "DuckDBPyConnection", table: str, ids: Sequence[str]) -> None:
    if ids:
        with seen_as(database, "gone", table_of({"gone_id": "VARCHAR"}, [(one,) for one in ids])):
            database.execute(f"DELETE FROM {table} WHERE id IN (SELECT gone_id FROM gone)")


def retire(database: "DuckDBPyConnection", sequence: int, trace_ids: Iterable[str],
           spans: Iterable[tuple[str, str]]) -> None:  # fmt: skip
    """Moves rows that are about to be replaced to their history: traces, and spans with tokens."""
    keys = table_of({"gone_id": "VARCHAR"}, [(one,) for one in trace_ids])
    pairs = table_of({"in_trace": "VARCHAR", "gone_id": "VARCHAR"}, list(spans))
    with seen_as(database, "gone", keys), seen_as(database, "gone_spans", pairs):
        for table, match in (
            ("traces", "id IN (SELECT gone_id FROM gone)"),
            ("spans", "(trace_id, id) IN (SELECT (in_trace, gone_id) FROM gone_spans)"),
            ("tokens", "(trace_id, span_id) IN (SELECT (in_trace, gone_id) FROM gone_spans)"),
        ):
            database.execute(
                f"INSERT INTO {table}_history SELECT *, ? FROM {table} WHERE since < ? AND {match}",
                [sequence, sequence],
            )
            database.execute(f"DELETE FROM {table} WHERE {match}")


def load(
    database: "DuckDBPyConnection",
    ids: Sequence[str],
    *,
    sequence: int | None = None,
    oldest: int = 0,
) -> list[tuple[Trace, dict[str, str], list[str]]]:
    """Traces as merged, in the order of `ids`, each with its copied spans and its raw keys.

    Args:
        sequence: as they stood then. None = as they stand.
        oldest: the sequence before which none of their rows lies; less is read.
    """
    with no_collection():
        return _load(database, ids, sequence, oldest)


def _load(
    database: "DuckDBPyConnection", ids: Sequence[str], sequence: int | None, oldest: int
) -> list[tuple[Trace, dict[str, str], list[str]]]:
    with seen_as(database, "wanted", table_of({"wanted_id": "VARCHAR"}, [(one,) for one in ids])):
        traces, spans, tokens = (
            named(database, _standing(table, key, sequence, oldest), {})
            for table, key in (("traces", "id"), ("spans", "trace_id"), ("tokens", "trace_id"))
        )
    words = {one for row in spans if row["input"] is not None for one in row["input"]}
    words.update(one for row in spans if row["output"] is not None for one in row["output"])
    tools = {row["tools"] for row in spans if row["tools"] is not None}
    order = {one: number for number, one in enumerate(ids)}
    traces.sort(key=lambda row: order[row["id"]])
    found = assemble(
        traces, spans, tokens, bodies(database, "messages", words),
        bodies(database, "toolsets", tools),
    )  # fmt: skip
    return [(*one, row["raws"]) for one, row in zip(found, traces, strict=True)]


def _standing(table: str, key: str, sequence: int | None, oldest: int) -> str:
    """The rows of wanted traces, as they stand or stood; row ids first, so that wide rows are read
    only where they lie."""
    standing = f"SELECT * FROM {table} WHERE rowid IN ({_row_ids(table, key, oldest)})"
    if sequence is None:
        return standing
    at = int(sequence)
    return (
        f'{standing} AND since <= {at} UNION ALL SELECT * EXCLUDE ("until") FROM {table}_history '
        f'WHERE {key} IN (SELECT wanted_id FROM wanted) AND since <= {at} AND "until" > {at}'
    )


def _row_ids(table: str, key: str, oldest: int) -> str:
    since = f" AND since >= {int(oldest)}" if oldest else ""
    return f"SELECT rowid FROM {table} WHERE {key} IN (SELECT wanted_id FROM wanted){since}"


def bodies(
    database: "DuckDBPyConnection", table: str, ids: set[str], *, body: str = "body"
) -> list[tuple[str, str]]:
    """(id, body) of those of `ids` that messages, or toolsets, have."""
    if not ids:
        return []
    if table == "messages":
        wanted = table_of({"wanted_key": "BIGINT"}, [(columns.short_key(one),) for one in ids])
        match = "key IN (SELECT wanted_key FROM wanted)"
    else:
        wanted = table_of({"wanted_id": "VARCHAR"}, [(one,) for one in ids])
        match = "id IN (SELECT wanted_id FROM wanted)"
    query = (
        f"SELECT id, {body} FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {match})"
    )
    with seen_as(database, "wanted", wanted):
        found = _with_room(database, query)
    return [one for one in found if one[0] in ids]


def _with_room(database: "DuckDBPyConnection", query: str) -> list[Any]:
    """A block of 2048 texts is read whole: where they are the largest that records keep, it takes
    more than what all other queries are bounded to."""
    import duckdb

    try:
        return database.execute(query).fetchall()
    except duckdb.OutOfMemoryException:
        database.execute(f"SET memory_limit = '{_LARGEST_BLOCK}'")
        return database.execute(query).fetchall()


def narrowed(**asked: tuple[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The conditions whose value is not None, and the values by the names they have there."""
    given = {name: pair for name, pair in asked.items() if pair[1] is not None}
    conditions = [condition for condition, _ in given.values()]
    values = {
        name: value if isinstance(value, str | int) else list(value)
        for name, (_, value) in given.items()
    }
    return conditions, values


def named(
    database: "DuckDBPyConnection", query: str, parameters: dict[str, Any]
) -> list[dict[str, Any]]:
    found = database.execute(query, parameters)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


class seen_as:
    """An Arrow table under a name in SQL, for the time of the block."""

    def __init__(self, database: "DuckDBPyConnection", name: str, table: "pa.Table") -> None:
        self._database, self._name, self._table = database, name, table

    def __enter__(self) -> None:
        self._database.register(self._name, self._table)

    def __exit__(self, *_: object) -> None:
        self._database.unregister(self._name)

"""The ledger: which segments were taken in, and how far each journal was.

Enter names of files and the rows of a transaction that takes them in; leaves what was taken in
before. Invariant: a row stands in the same transaction as all that it says was taken in.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from storage.rows import insert, seen_as, table_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_SHAPE = {"name": "VARCHAR", "sequence": "BIGINT", "records": "BIGINT", "consumed": "BIGINT"}
_CONSUMED = """
SELECT name, max(consumed) FROM segments WHERE name IN (SELECT wanted_name FROM wanted)
GROUP BY name
"""


class Entry(NamedTuple):
    name: str
    """A segment's, or `journal:FILE`."""
    sequence: int
    records: int
    consumed: int
    """Bytes: a segment's size, or how far a journal was read."""


def next_sequence(database: "DuckDBPyConnection") -> int:
    ((last,),) = database.execute("SELECT coalesce(max(sequence), 0) FROM segments").fetchall()
    return int(last) + 1


def consumed(database: "DuckDBPyConnection", names: Sequence[str]) -> dict[str, int]:
    """How much of files was taken in; those of which nothing was are not there."""
    wanted = table_of({"wanted_name": "VARCHAR"}, [(one,) for one in names])
    with seen_as(database, "wanted", wanted):
        return dict(database.execute(_CONSUMED).fetchall())


def write(database: "DuckDBPyConnection", entries: Sequence[Entry], before: dict[str, int]) -> None:
    """Writes `entries`, in place of those that were there `before`."""
    for name in [one.name for one in entries if one.name in before]:
        database.execute("DELETE FROM segments WHERE name = ?", [name])
    insert(database, "segments", _SHAPE, entries)

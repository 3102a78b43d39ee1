"""Raw bytes of what is erased leave the raw store, and those of others that share a chunk stay.

Enter the keys that erased traces had; leave chunks in which their rows are blanks, under a new
digest that the other traces' rows name from then on, or no chunk at all. What told of several
people in one row keeps its form, and what is found of the erased in it is struck out. Invariant: a
new chunk is there before rows name it, and the old one goes after.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flywheel.errors import CorruptFile
from flywheel.failpoints import failpoint
from flywheel.home import Home
from storage.database import writing
from storage.needles import Search
from storage.raw import RawStore, part
from storage.rows import seen_as, table_of
from storage.scrubbing import filled

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def raw_anew(
    home: Home, keys: Sequence[str], kept: Sequence[str], search: Search, *, wait_s: float
) -> int:
    """
    Args:
        keys: of erased traces, `DIGEST` or `DIGEST#OFFSET+LENGTH`.
        kept: digests of large parts that nobody else names.

    Returns: bytes that went.
    """
    gone: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        digest, _, place = key.partition("#")
        gone[digest].append(place)
    theirs = _others(home, list(gone), wait_s)
    store, removed = RawStore(home), 0
    renamed: dict[str, str | None] = {}
    for digest, places in gone.items():
        try:
            data = store.get(digest)
        except KeyError:
            continue  # an erasure that was killed went on from here
        except CorruptFile:
            renamed[digest] = None  # nobody can read it any more, and parts of it may still say it
            continue
        made = _without(data, places, theirs.get(digest, []), search)
        removed += sum(old != new for old, new in zip(data, made, strict=True))
        renamed[digest] = store.put(made) if made.strip() and theirs.get(digest) else None
    failpoint("erase.raw_written")
    _rename(home, {old: new for old, new in renamed.items() if new}, wait_s)
    for digest, new in renamed.items():
        if new != digest:
            store.drop(digest)
    for digest in kept:
        removed += store.drop(digest)
    return removed


def _without(data: bytes, gone: list[str], others: list[str], search: Search) -> bytes:
    made = bytearray(data)
    shared = {place for place in others if place}
    whole = "" in others
    for place in gone:
        start, length = part(place, len(data))
        if place in shared or (whole and not place):
            made[start : start + length] = filled(bytes(data[start : start + length]), search)
        else:
            made[start : start + length] = b" " * length
    return _rest(bytes(made), [part(place, len(data)) for place in others], search)


def _rest(data: bytes, others: list[tuple[int, int]], search: Search) -> bytes:
    """Rows that no trace names (the same row again, one that was rejected) go by what they hold."""
    lines = data.split(b"\n")
    found = {at for at, _ in search.hits(lines)}
    if not found:
        return data
    offset, theirs = 0, sorted(others)
    for at, line in enumerate(lines):
        if at in found:
            held = any(start < offset + len(line) and offset < start + length
                       for start, length in theirs)  # fmt: skip
            lines[at] = filled(line, search) if held else b" " * len(line)
        offset += len(line) + 1
    return b"\n".join(lines)


def _others(home: Home, digests: list[str], wait_s: float) -> dict[str, list[str]]:
    """Digest -> slices of it that traces name which are there."""
    found: dict[str, list[str]] = defaultdict(list)
    if not digests:
        return found
    with writing(home, wait_s=wait_s) as database:
        wanted = table_of({"wanted_id": "VARCHAR"}, [(one,) for one in digests])
        with seen_as(database, "wanted", wanted):
            rows = database.execute(
                "SELECT DISTINCT key FROM (SELECT unnest(list_append(coalesce(raws, []), raw)) "
                "AS key FROM all_traces) WHERE key IS NOT NULL AND split_part(key, '#', 1) IN "
                "(SELECT wanted_id FROM wanted)"
            ).fetchall()
    for (key,) in rows:
        digest, _, place = key.partition("#")
        found[digest].append(place)
    return found


def _rename(home: Home, renamed: dict[str, str], wait_s: float) -> None:
    pairs = {old: new for old, new in renamed.items() if old != new}
    if not pairs:
        return
    with writing(home, wait_s=wait_s) as database:
        database.begin()
        rename(database, pairs)
        database.commit()


def rename(database: "DuckDBPyConnection", pairs: Mapping[str, str]) -> None:
    """Rows that named a chunk by its old digest name it by the new one, in the caller's
    transaction."""
    keys = table_of({"old": "VARCHAR", "new": "VARCHAR"}, list(pairs.items()))
    with seen_as(database, "renamed", keys):
        database.execute("CREATE OR REPLACE TEMP TABLE names AS SELECT * FROM renamed")
    for table in ("traces", "traces_history"):
        database.execute(
            "CREATE OR REPLACE TEMP TABLE moved AS WITH each AS (SELECT rowid AS line, "
            f"unnest(raws) AS key, raw FROM {table}) SELECT line, list(coalesce(names.new || "
            "substr(key, 33), key) ORDER BY key) AS raws, bool_or(names.new IS NOT NULL) AS "
            "touched FROM each LEFT JOIN names ON names.old = left(key, 32) GROUP BY line "
            "HAVING touched"
        )
        database.execute(
            f"UPDATE {table} SET raws = moved.raws FROM moved WHERE {table}.rowid = moved.line"
        )
        database.execute(
            f"UPDATE {table} SET raw = names.new || substr(raw, 33) FROM names "
            f"WHERE left({table}.raw, 32) = names.old"
        )

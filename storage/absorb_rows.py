"""Rows that are ready become rows of the store, inside the committer's transaction.

Enter the tables of segments (see `storage.prepared`). Traces that the store does not know are
inserted as they are; one that it knows, or that comes twice, is merged as a line's would be.
Invariant: the store is as if every row had come as the record that it is of.
"""

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from flywheel.records import Trace
from storage import prepared
from storage.absorb import Absorbed, absorb_traces
from storage.arrow import array_of
from storage.prepared import SHAPES, Tables
from storage.rows import no_collection, seen_as, table_of

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_SLICE = 5_000
"""Traces that are held as objects at once."""
_FRESH = """
SELECT id FROM ready_traces ANTI JOIN traces USING (id) GROUP BY id HAVING count(*) = 1
"""
_CHANGED = """
SELECT DISTINCT id FROM ready_traces ANTI JOIN fresh USING (id)
WHERE NOT EXISTS (
    SELECT 1 FROM traces WHERE traces.id = ready_traces.id AND traces.digest = ready_traces.digest
        AND list_has_all(traces.raws, ready_traces.raws)
) OR id IN (SELECT trace_id FROM ready_spans WHERE copy_of IS NOT NULL)
"""
"""What is known and may bring something new: an equal digest says that all of it is there."""


def absorb_rows(
    database: "DuckDBPyConnection", sequence: int, segments: list[Tables]
) -> Counter[str]:
    """Takes in `segments` under ledger sequence `sequence`; returns what they changed."""
    counts: Counter[str] = Counter()
    ready = {name: _together(name, segments) for name in SHAPES}
    with contextlib.ExitStack() as views:
        for name, table in ready.items():
            views.enter_context(seen_as(database, f"ready_{name}", table))
        if came := ready["traces"].num_rows:
            _traces(database, sequence, segments, came, counts)
        if came := ready["feedback"].num_rows:
            _feedback(database, sequence, came, counts)
    return counts


def _together(name: str, segments: list[Tables]) -> "pa.Table":
    import pyarrow as pa

    found = [tables[name] for tables in segments if name in tables]
    return pa.concat_tables(found) if found else table_of(SHAPES[name], [])


def _traces(
    database: "DuckDBPyConnection",
    sequence: int,
    segments: list[Tables],
    came: int,
    counts: Counter[str],
) -> None:
    database.execute(f"CREATE OR REPLACE TEMP TABLE fresh AS {_FRESH}")
    ((new,),) = database.execute("SELECT count(*) FROM fresh").fetchall()
    changed: list[str] = []
    if new < came:
        changed = [one for (one,) in database.execute(f"{_CHANGED} ORDER BY id").fetchall()]
    whole = new == came
    of_fresh = "" if whole else "SEMI JOIN fresh ON {} = fresh.id"
    for name, key in (("traces", "id"), ("spans", "trace_id"), ("tokens", "trace_id")):
        ready = f"ready_{name} {of_fresh.format(f'ready_{name}.{key}')}"
        ((rows,),) = database.execute(
            f"INSERT INTO {name} BY NAME SELECT * REPLACE ($sequence AS since) FROM {ready}",
            {"sequence": sequence},
        ).fetchall()
        counts[name] += rows if name != "tokens" else 0
    _bodies(database, whole)
    known = 0
    for start in range(0, len(changed), _SLICE):
        with no_collection():
            ids = changed[start : start + _SLICE]
            parts = [one for tables in segments for one in _parts(tables, ids)]
            done = Absorbed()
            absorb_traces(database, sequence, parts, done)
        known += len(parts)
        counts.update(done.counts)
    counts["duplicates"] += max(0, came - new - known)


def _bodies(database: "DuckDBPyConnection", whole: bool) -> None:
    """What new traces said, and the tools that they had, where it is not there yet."""
    for name, key, used in (
        ("messages", "key", "SELECT unnest(input || output) AS id FROM ready_spans SEMI JOIN fresh "
         "ON ready_spans.trace_id = fresh.id"),
        ("toolsets", "id", "SELECT tools AS id FROM ready_spans SEMI JOIN fresh "
         "ON ready_spans.trace_id = fresh.id"),
    ):  # fmt: skip
        database.execute(  # ids are read only where the short key is there
            f"CREATE OR REPLACE TEMP TABLE there AS SELECT id FROM {name} WHERE rowid IN "
            f"(SELECT {name}.rowid FROM {name} SEMI JOIN ready_{name} USING ({key}))"
        )
        needed = "" if whole else f"AND new.id IN ({used})"
        missing = f"WHERE NOT EXISTS (SELECT 1 FROM there WHERE there.id = new.id) {needed}"
        database.execute(  # few come several times: the others go past no hash table of bodies
            f"CREATE OR REPLACE TEMP TABLE several AS "
            f"SELECT {key} FROM ready_{name} GROUP BY {key} HAVING count(*) > 1"
        )
        for once in (
            f"SELECT new.* FROM ready_{name} AS new ANTI JOIN",
            f"SELECT DISTINCT ON (id) new.* FROM ready_{name} AS new SEMI JOIN",
        ):
            database.execute(f"INSERT INTO {name} BY NAME {once} several USING ({key}) {missing}")


def _parts(tables: Tables, ids: list[str]) -> list[Trace]:
    """The traces of one segment that are among `ids`, read."""
    import pyarrow.compute as pc

    def rows(name: str, key: str, wanted: list[str]) -> list[dict[str, Any]]:
        if name not in tables:
            return []
        values = array_of(wanted, "VARCHAR")
        found: list[dict[str, Any]] = (
            tables[name].filter(pc.is_in(tables[name][key], value_set=values)).to_pylist()
        )
        return found

    spans = rows("spans", "trace_id", ids)
    said = {one for row in spans for one in (*(row["input"] or ()), *(row["output"] or ()))}
    return list(
        prepared.parts(
            {
                "traces": rows("traces", "id", ids),
                "spans": spans,
                "tokens": rows("tokens", "trace_id", ids),
                "messages": rows("messages", "id", list(said)),
                "toolsets": rows("toolsets", "id", [row["tools"] for row in spans if row["tools"]]),
            }
        )
    )


def _feedback(
    database: "DuckDBPyConnection", sequence: int, came: int, counts: Counter[str]
) -> None:
    """Its id is of all that it says: what is there is the same."""
    ((new,),) = database.execute(
        "INSERT INTO feedback BY NAME SELECT DISTINCT ON (id) * REPLACE ($sequence AS since) "
        "FROM ready_feedback ANTI JOIN feedback USING (id)",
        {"sequence": sequence},
    ).fetchall()
    counts["feedback"] += new
    counts["duplicates"] += came - new

"""Rows of what is erased leave the database, in one transaction with what keeps them from coming
back; then the file is written anew, so that the blocks that they lay in are gone too.

Enters a plan; leaves a database without it. Invariant: the ledger names the erasure in the same
transaction, so that doing it again after a kill changes nothing; the file is replaced by one rename
while nobody has it open.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flywheel import durable
from flywheel.errors import Full
from flywheel.failpoints import failpoint
from flywheel.home import Home
from storage import tombstones
from storage.database import PACKING, writing
from storage.entries import TABLES
from storage.envelope import KINDS
from storage.needles import Search
from storage.reach import Asked, Reached, reach
from storage.rows import seen_as, table_of
from storage.scrubbing import cleaned_text
from storage.tombstones import Tombstone

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_THEMSELVES = ("traces", "traces_history")
_TOLD = (
    "datasets", "runs", "checkpoints", "evaluations", "decisions", "deployments", "calibrations",
    "marks", "erasures", "feedback", "problems",
)  # fmt: skip
_RECORDS = {table.name: KINDS[kind] for kind, table in TABLES.items()}
_MAKING = ".rewriting"
_WHOLE_FILE = "2GB"


def remove(
    home: Home,
    name: str,
    *,
    asked: Asked,
    reached: Reached,
    stones: Sequence[Tombstone],
    wait_s: float,
) -> bool:
    """Whether the rows are gone; False = others were committed since they were `reached`, and
    nothing was changed.

    Args:
        name: the ledger's, of this erasure.

    Raises:
        Busy: another process held the database for longer than `wait_s`.
    """
    with writing(home, wait_s=wait_s) as database:
        if database.execute("SELECT 1 FROM segments WHERE name = ?", [name]).fetchall():
            return True
        database.begin()
        if reach(database, asked) != reached:
            return False
        ((last,),) = database.execute("SELECT coalesce(max(sequence), 0) FROM segments").fetchall()
        for table, column in _by_trace(database):
            _delete(database, table, column, reached.traces)
        _delete(database, "grades", "problem_id", reached.problems)
        for table, ids in (
            ("problems", reached.problems), ("feedback", reached.feedback),
            ("messages", reached.messages), ("toolsets", reached.toolsets),
        ):  # fmt: skip
            _delete(database, table, "id", ids)
        _stand_alone(database, reached.traces)
        tombstones.put(database, stones)
        database.execute("INSERT INTO segments VALUES (?, ?, 0, 0)", [name, int(last) + 1])
        failpoint("erase.before_commit")
        database.commit()
    return True


def _by_trace(database: "DuckDBPyConnection") -> list[tuple[str, str]]:
    """Every table whose rows are of one trace, and the column that says of which."""
    named = database.execute(
        "SELECT table_name FROM duckdb_columns() WHERE column_name = 'trace_id' "
        "AND table_name NOT IN (SELECT view_name FROM duckdb_views()) "
        "AND database_name = current_database() AND table_name <> 'problems'"
    ).fetchall()
    return [*((table, "id") for table in _THEMSELVES), *((one, "trace_id") for (one,) in named)]


def _delete(database: "DuckDBPyConnection", table: str, column: str, ids: Sequence[str]) -> None:
    if ids:
        gone = table_of({"gone_id": "VARCHAR"}, [(one,) for one in ids])
        with seen_as(database, "gone_now", gone):
            database.execute(
                f"DELETE FROM {table} WHERE {column} IN (SELECT gone_id FROM gone_now)"
            )


def _stand_alone(database: "DuckDBPyConnection", traces: Sequence[str]) -> None:
    """What was a copy of an erased trace, and stays since it is somebody else's, counts itself."""
    if not traces:
        return
    gone = table_of({"gone_id": "VARCHAR"}, [(one,) for one in traces])
    with seen_as(database, "gone_now", gone):
        for table in ("traces", "traces_history"):
            database.execute(
                f"UPDATE {table} SET duplicate_of = NULL "
                "WHERE duplicate_of IN (SELECT gone_id FROM gone_now)"
            )
        for table, column, instead in (
            ("cards", "stands_for", "trace_id"),
            ("threads", "root", "trace_id"),
            ("threads", "follows", "NULL"),
        ):
            database.execute(
                f"UPDATE {table} SET {column} = {instead} "
                f"WHERE {column} IN (SELECT gone_id FROM gone_now)"
            )


def scrub_records(home: Home, search: Search, *, wait_s: float) -> int:
    """Takes what is found out of records that are nobody's own, and returns how many: what a
    decision rests on, what a run was told, what was said of an erasure before."""
    changed = 0
    with writing(home, wait_s=wait_s) as database:
        database.begin()
        for table in _TOLD:
            rows = database.execute(f"SELECT rowid, body FROM {table}").fetchall()
            for at, _ in search.hits([body.encode() for _, body in rows]):
                row, body = rows[at]
                new = cleaned_text(body.encode(), search).decode()
                if not _is_one(table, new):
                    continue  # the look afterwards finds it, and the receipt says so
                database.execute(f"UPDATE {table} SET body = ? WHERE rowid = ?", [new, row])
                changed += 1
        database.commit()
    return changed


def _is_one(table: str, body: str) -> bool:
    """Whether a record of that table can still be read."""
    try:
        msgspec.json.decode(body, type=_RECORDS[table])
    except msgspec.DecodeError:
        return False
    return True


def rewrite(home: Home, *, wait_s: float) -> None:
    """The database's file written anew, of what its tables hold.

    Raises:
        Busy: another process held it for longer than `wait_s`.
        Full: there is no room for a second one beside it; the first is as it was.
    """
    import duckdb

    if home.catalog is not None:
        return  # its tables lie in the lake, which is searched: what is left there is told
    old, new = home.database, home.database.with_name(home.database.name + _MAKING)
    with writing(home, wait_s=wait_s) as database:
        _drop(new)
        free, needed = shutil.disk_usage(old.parent).free, old.stat().st_size
        if free < needed:
            raise Full(f"{old} is written anew and needs {needed} bytes, {free} are free")
        database.execute("CHECKPOINT")
        database.close()  # nobody else comes in: the door is ours until this block ends
        config: dict[str, str | bool | int | float | list[str]] = {
            "threads": 1, "memory_limit": _WHOLE_FILE, "preserve_insertion_order": True,
        }  # fmt: skip
        with durable.no_space(new), duckdb.connect(config=config) as both:
            both.execute(f"ATTACH '{_quoted(old)}' AS old (READ_ONLY)")
            both.execute(f"ATTACH '{_quoted(new)}' AS new")
            both.execute(PACKING)
            both.execute("COPY FROM DATABASE old TO new")
            both.execute("CHECKPOINT new")
        with new.open("rb") as file:
            os.fsync(file.fileno())
        failpoint("erase.before_replace")
        Path(f"{old}.wal").unlink(missing_ok=True)  # of before the checkpoint
        os.replace(new, old)
        durable.sync_folder(old.parent)


def _drop(path: Path) -> None:
    for suffix in ("", ".wal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")

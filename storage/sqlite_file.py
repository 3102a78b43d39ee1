"""SQLite files of other programs (MLflow's, Prefect's): are they sound? Never written to."""

import sqlite3
from pathlib import Path

_HEAD = b"SQLite format 3\0"
_WAIT_S = 3.0


def tables(path: Path) -> frozenset[str]:
    """The names of its tables, once a short look found it whole.

    Raises:
        ValueError: it is no database, is damaged, or is locked for long; says which.
    """
    with path.open("rb") as file:
        if file.read(len(_HEAD)) != _HEAD:
            raise ValueError("it is not a database")
    try:
        database = _opened(path)
        try:
            ((said,),) = database.execute("PRAGMA quick_check(1)").fetchall()
            rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names = frozenset(name for (name,) in rows.fetchall())
        finally:
            database.close()
    except sqlite3.Error as error:
        raise ValueError(f"SQLite says: {error}") from error
    if said != "ok":
        raise ValueError(f"it is damaged: {said}")
    return names


def count(path: Path, table: str) -> int:
    """Rows of one of its `tables`.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        database = _opened(path)
        try:
            name = table.replace('"', '""')
            ((found,),) = database.execute(f'SELECT count(*) FROM "{name}"').fetchall()
        finally:
            database.close()
    except sqlite3.Error as error:
        raise ValueError(f"SQLite says: {error}") from error
    return int(found)


def _opened(path: Path) -> sqlite3.Connection:
    # Without its log beside it nobody has it open, and nothing need be made to read it.
    quiet = not path.with_name(path.name + "-wal").exists()
    address = f"{path.resolve().as_uri()}?{'immutable=1' if quiet else 'mode=ro'}"
    return sqlite3.connect(address, uri=True, timeout=_WAIT_S)

"""The database file, opened for one query or one commit and closed again.

DuckDB lets one process write, which shuts readers out, and readers shut the writer out. So all
opens are short, wait for each other within bounds, and a writer that waits goes before new readers
(the commit lock is the door that they all pass). Nothing is kept open and nothing is cached.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flywheel.errors import Busy, CorruptFile, FlywheelError, Full
from flywheel.home import Home
from storage import ducklake, schema
from storage.locks import held

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_POLL_S = 0.02
_MEMORY = "1GB"
PACKING = "SET disabled_compression_methods = 'dict_fsst'; SET zstd_min_string_length = 1"
"""Most texts here are random ids, which a search for what repeats in them makes no smaller: packed
as bytes they take half the time to write, and a fifth more room."""


@contextlib.contextmanager
def writing(home: Home, *, wait_s: float) -> Iterator["DuckDBPyConnection"]:
    """The database at its newest version, to write to; the only one there is meanwhile.

    Raises:
        Busy: another commit, or a reader, held it for longer than `wait_s`.
        Full: no space left; the transaction under way is gone, what was committed before stays.
    """
    import duckdb

    home.root.mkdir(parents=True, exist_ok=True)
    busy = f"another process commits to {home.database}: wait for it and run again"
    with (
        held(_door(home), wait_s=wait_s, busy=busy),
        ducklake.committing(home, wait_s=wait_s),
    ):
        database = _opened(home, read_only=False, wait_s=wait_s)
        try:
            schema.migrate(database)
            yield database
        except duckdb.Error as error:
            _tell(home, error)
            raise
        finally:
            database.close()


@contextlib.contextmanager
def reading(home: Home, *, wait_s: float = 120.0) -> Iterator["DuckDBPyConnection | None"]:
    """The database for one query; None = nothing was ever committed.

    Raises:
        Busy: a commit held it for longer than `wait_s`.
    """
    if not exists(home):
        yield None
        return
    import duckdb

    busy = f"{home.database} is being written to: wait for the commit and run again"
    with held(_door(home), wait_s=wait_s, busy=busy, shared=True):
        database = _opened(home, read_only=True, wait_s=wait_s)
    try:
        reached = schema.version(database)
        schema.check(reached)
        if 0 < reached < schema.newest():
            raise FlywheelError(
                f"{home.database} is of version {reached}: run `flywheel ingest` to bring it up"
            )
        yield database if reached else None
    except duckdb.Error as error:
        _tell(home, error)
        raise
    finally:
        database.close()


def outdated(home: Home, *, wait_s: float) -> bool:
    """Whether the file is of an earlier version than this code's: opening it to write brings it up.

    Raises:
        Busy: a commit held it for longer than `wait_s`.
    """
    if not exists(home):
        return False
    busy = f"{home.database} is being written to: wait for the commit and run again"
    with held(_door(home), wait_s=wait_s, busy=busy, shared=True):
        database = _opened(home, read_only=True, wait_s=wait_s)
    try:
        return 0 < schema.version(database) < schema.newest()
    finally:
        database.close()


def exists(home: Home) -> bool:
    """Whether there may be a database: on DuckLake the catalogue says."""
    return home.catalog is not None or home.database.exists()


def _door(home: Home) -> Path:
    return home.locks / "commit.lock"


def _opened(home: Home, *, read_only: bool, wait_s: float) -> "DuckDBPyConnection":
    import duckdb

    # One thread writes: for a batch, two cost twice the time of one. A commit's bulk goes into the
    # file at once, not into the log beside it first.
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 2 if read_only else 1,
        "memory_limit": _MEMORY,
        "preserve_insertion_order": False,
        "checkpoint_threshold": "1MB",
    }
    if home.catalog is not None:
        return ducklake.opened(home, config)
    until = time.monotonic() + wait_s
    while True:
        try:
            database = duckdb.connect(home.database, read_only=read_only, config=config)
            break
        except duckdb.Error as error:
            if not _in_use(error):
                raise CorruptFile(f"{home.database} cannot be opened: {error}") from error
            if time.monotonic() >= until:
                raise Busy(
                    f"{home.database} is held by another process: close it there, or wait and run "
                    f"again ({error})"
                ) from error
        time.sleep(_POLL_S)
    if not read_only:
        database.execute(PACKING)
    return database


def _tell(home: Home, error: Exception) -> None:
    """Raises DuckDB's error as what it is to people; returns where it is a mistake of ours."""
    said = str(error)
    if "No space left" in said:
        raise Full(f"no space left for {home.database}: free some and run again") from error
    if "Corrupt" in said or type(error).__name__ in ("InternalException", "FatalException"):
        raise CorruptFile(
            f"{home.database} is damaged ({said}): put a copy back, or move it away"
        ) from error


def _in_use(error: Exception) -> bool:
    said = str(error)
    return "Could not set lock" in said or "different configuration" in said

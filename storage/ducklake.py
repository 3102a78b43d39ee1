"""The database on DuckLake: its tables as Parquet in the lake, its catalogue in PostgreSQL.

Enters a home with a catalogue and a lake; leaves a DuckDB connection in which the store's tables
stand under their own names, so that nothing else knows the difference. Of several machines one
commits at a time: PostgreSQL's advisory lock is the commit lock's other half, and goes with the
connection of whoever held it.
"""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flywheel.errors import Busy, FlywheelError, MissingPart, UsageError
from flywheel.home import Home

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NAME = "store"
_POLL_S = 0.1
_ANSWER_S = 10.0


def opened(
    home: Home, config: dict[str, str | bool | int | float | list[str]]
) -> "DuckDBPyConnection":
    """For reading and writing alike: a reader shuts nobody out here.

    Raises:
        MissingPart: DuckDB's extensions are not here and cannot be fetched.
        FlywheelError: the catalogue or the lake does not let us.
    """
    import duckdb

    database = duckdb.connect(config=config)
    try:
        for extension in extensions(home):
            _load(database, extension)
        for statement in statements(home):
            database.execute(statement)
    except duckdb.Error as error:
        database.close()
        raise FlywheelError(
            f"the catalogue of FLYWHEEL_CATALOG cannot be attached: {error}: look at it, and at "
            "FLYWHEEL_LAKE"
        ) from error
    except BaseException:
        database.close()
        raise
    return database


def extensions(home: Home) -> tuple[str, ...]:
    remote = lake(home).startswith("s3://")
    return ("ducklake", "postgres", *(("httpfs", "aws") if remote else ()))


def statements(home: Home) -> list[str]:
    """What attaches the store, once the extensions are loaded."""
    where = lake(home)
    secret = ["CREATE OR REPLACE SECRET lake (TYPE s3, PROVIDER credential_chain)"]
    catalog = _quoted(f"ducklake:postgres:{home.catalog}")
    data = _quoted(where.rstrip("/") + "/ducklake/")
    return [
        *(secret if where.startswith("s3://") else []),
        f"ATTACH {catalog} AS {NAME} (DATA_PATH {data})",
        f"USE {NAME}",
    ]


def lake(home: Home) -> str:
    if home.catalog is None or home.lake is None:
        raise UsageError("FLYWHEEL_CATALOG needs FLYWHEEL_LAKE, where its data lies")
    return home.lake


@contextlib.contextmanager
def committing(home: Home, *, wait_s: float) -> Iterator[None]:
    """Holds the catalogue's commit lock for the time of the block; nothing where there is none.

    Raises:
        Busy: another machine held it for longer than `wait_s`.
        FlywheelError: PostgreSQL cannot be reached.
    """
    if home.catalog is None:
        yield
        return
    lock = _Lock(home.catalog, key_of(home), wait_s)
    lock.take()
    try:
        yield
    finally:
        lock.give_back()


def key_of(home: Home) -> int:
    """The lock's number: of the lake, so that catalogues of several may share a server."""
    found = hashlib.blake2b(f"flywheel {lake(home)}".encode(), digest_size=8).digest()
    return int.from_bytes(found, "big", signed=True)


class _Lock:
    """In a thread of its own, since the caller may have an event loop already."""

    def __init__(self, url: str, key: int, wait_s: float) -> None:
        self._url, self._key, self._wait_s = url, key, wait_s
        self._taken, self._over = threading.Event(), threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="catalogue lock")

    def take(self) -> None:
        self._thread.start()
        self._taken.wait()
        if self._failure is not None:
            raise self._failure

    def give_back(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        import asyncio

        try:
            asyncio.run(self._hold())
        except Busy as busy:
            self._failure = busy
        except Exception as error:  # of asyncpg, or of the network under it
            self._failure = FlywheelError(
                f"the catalogue's PostgreSQL cannot be used ({type(error).__name__}: {error}): "
                "look at FLYWHEEL_CATALOG; nothing is lost, run it again"
            )
        self._taken.set()

    async def _hold(self) -> None:
        import asyncio

        import asyncpg

        connection = await asyncpg.connect(self._url, timeout=_ANSWER_S, command_timeout=_ANSWER_S)
        try:
            until = time.monotonic() + self._wait_s
            while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", self._key):
                if time.monotonic() >= until:
                    raise Busy("another machine commits to this catalogue: wait and run again")
                await asyncio.sleep(_POLL_S)
            self._taken.set()
            while not self._over.is_set():
                await asyncio.sleep(_POLL_S / 10)
        finally:
            await connection.close(timeout=_ANSWER_S)


def _load(database: "DuckDBPyConnection", extension: str) -> None:
    import duckdb

    with contextlib.suppress(duckdb.Error):
        database.execute(f"INSTALL {extension}")
    try:
        database.execute(f"LOAD {extension}")
    except duckdb.Error as error:
        raise MissingPart(
            f"DuckDB's extension {extension} is not here and could not be fetched: run once where "
            f"its repository of extensions can be reached, or unset FLYWHEEL_CATALOG ({error})"
        ) from error


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

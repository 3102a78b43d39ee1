"""One file in which something was found is cleaned of it, each kind of file in its own way.

Enters a file of a home; leaves what was done to it, in words. Files that a running server appends
to are blanked in place; all others are replaced by one rename, or go. Invariant: what others need
stays readable to them: a document is still one, a table still has its columns.
"""

import contextlib
import os
import sqlite3
from pathlib import Path

import msgspec
import zstandard

from flywheel import durable
from flywheel.errors import Busy
from flywheel.home import Home
from storage.containers import sqlite_tables
from storage.database import reading
from storage.journal import name_of
from storage.needles import Search
from storage.scrubbing import blanked, cleaned, cleaned_text, filled, masked, without_lines

_SLOT = 128
"""Of `serving.stitching`, whose table is read past torn slots."""
_OURS = ("responses.sqlite", "repeats.sqlite", "judge.sqlite", "search")
"""Databases whose rows are a memory: one that holds something goes. In others it is replaced."""
_TEXTS = (".html", ".md", ".txt", ".csv", ".toml", ".yaml", ".svg", ".why")
_PACKED = (".group", ".batch", ".msgpack")
_KEPT = ("routing.json", "keys.json", "home.id", "erasure.key", "flywheel.duckdb")
"""What is not changed here: without it nothing would run."""


def scrub(home: Home, path: Path, search: Search) -> str:
    """
    Raises:
        Busy: it is in use; run again.
        OSError, ValueError: it is none of the kind that it seems to be.
    """
    area = path.relative_to(home.root).parts[0]
    if area in _KEPT or area == "locks":
        return "kept"
    if area == "journal":
        return _in_place(path, search, _taken_in(home, path))
    if path.suffix == ".log":
        return _in_place(path, search, None)
    if area == "stitching":
        return _slots(path, search)
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3\0"):
        return _sqlite(path, search, delete=area in _OURS)
    if head.startswith(b"PAR1"):
        return _parquet(path, search)
    return _document(home, path, area, head, search)


def _document(home: Home, path: Path, area: str, head: bytes, search: Search) -> str:
    if area in ("imports", "cache", "engine") or head.startswith(b"PK\x03\x04"):
        path.unlink(missing_ok=True)
        return "removed"
    data = path.read_bytes()
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            plain = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        except zstandard.ZstdError as error:
            raise ValueError(f"{path} cannot be unpacked: {error}") from error
        return _replaced(path, zstandard.ZstdCompressor().compress(without_lines(plain, search)))
    if path.suffix == ".jsonl" or (area == "quarantine" and b"\n" in data):
        left = without_lines(data, search)
        return _removed(path) if not left.strip() else _replaced(path, left)
    if area == "quarantine":
        return _removed(path)
    if path.suffix in _PACKED:
        try:
            value = cleaned(msgspec.msgpack.decode(data), search)
        except msgspec.DecodeError:
            return _replaced(path, filled(data, search))  # it is damaged: nobody else reads it
        return _replaced(path, msgspec.msgpack.encode(value))
    if path.suffix in _TEXTS:
        tags = path.suffix in (".html", ".svg")
        within = (b">", b"<") if tags else (b"\n", b"\n")
        return _replaced(path, masked(data, search, within=within))
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        value = cleaned(msgspec.json.decode(data), search)
        made = msgspec.json.format(msgspec.json.encode(value)) + b"\n"
        return _replaced(path, masked(made, search) if search.holds(made) else made)
    return _removed(path)


def _removed(path: Path) -> str:
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".why").unlink(missing_ok=True)
    durable.sync_folder(path.parent)
    return "removed"


def _replaced(path: Path, data: bytes) -> str:
    mode = path.stat().st_mode & 0o777
    durable.write(path, data)
    path.chmod(mode)
    return "cleaned"


def _taken_in(home: Home, path: Path) -> int:
    """Bytes of a journal that the store has; what lies behind is for the committer to judge."""
    with reading(home) as database:
        if database is None:
            return 0
        query = "SELECT coalesce(max(consumed), 0) FROM segments WHERE name = ?"
        ((consumed,),) = database.execute(query, [name_of(path)]).fetchall()
    return int(consumed)


def _in_place(path: Path, search: Search, until: int | None) -> str:
    """Only what is there already, so that what is appended meanwhile stays.

    Args:
        until: bytes whose lines may be blanked; None = all, a last line that no break ends too.
    """
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(handle).st_size
        data = os.pread(handle, size if until is None else until, 0)
        whole = data if until is None else data[: data.rfind(b"\n") + 1]
        made = blanked(whole, search)
        at = 0
        for old, new in zip(whole.split(b"\n"), made.split(b"\n"), strict=True):
            if old != new:
                os.pwrite(handle, new, at)
            at += len(old) + 1
        os.fsync(handle)
    finally:
        os.close(handle)
    return "blanked"


def _slots(path: Path, search: Search) -> str:
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        data = os.pread(handle, os.fstat(handle).st_size, 0)
        for start, length in search.places(data):
            first, last = start // _SLOT, (start + length - 1) // _SLOT
            for slot in range(first, last + 1):
                os.pwrite(handle, bytes(_SLOT), slot * _SLOT)
        os.fsync(handle)
    finally:
        os.close(handle)
    return "blanked"


def _parquet(path: Path, search: Search) -> str:
    import pyarrow.parquet as pq

    from storage.containers import cells

    table = pq.read_table(path)
    hit: set[int] = set()
    for column in table.columns:
        hit |= {at for at, _ in search.hits([cells([one]) for one in column.to_pylist()])}
    if len(hit) == table.num_rows:
        return _removed(path)
    making = path.with_name(f".{path.name}.making")
    pq.write_table(table.take([at for at in range(table.num_rows) if at not in hit]), making)
    os.replace(making, path)
    durable.sync_folder(path.parent)
    return "cleaned"


def _sqlite(path: Path, search: Search, *, delete: bool) -> str:
    from storage.containers import cells

    try:
        with contextlib.closing(
            sqlite3.connect(path, timeout=30, isolation_level=None)
        ) as database:
            database.execute("PRAGMA secure_delete = ON")
            database.execute("BEGIN IMMEDIATE")
            for table in sqlite_tables(database):
                name = table.replace('"', '""')
                keys = _keys(database, table)
                chosen = ", ".join([*keys, "*"])
                rows = database.execute(f'SELECT {chosen} FROM "{name}"').fetchall()
                for at, _ in search.hits([cells(list(row)) for row in rows]):
                    row, width = rows[at], len(keys)
                    where = " AND ".join(f"{key} IS ?" for key in keys)
                    _row(database, name, where, row[:width], row[width:], search, delete=delete)
            database.execute("COMMIT")
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.OperationalError as error:
        raise Busy(f"{path} cannot be cleaned now ({error}): run the erasure again") from error
    except sqlite3.DatabaseError as error:
        if not delete:
            raise ValueError(f"{path} is damaged: {error}") from error
        return _removed(path)  # a memory that nobody can read
    return "cleaned"


def _keys(database: sqlite3.Connection, table: str) -> list[str]:
    """Expressions that name a row."""
    try:
        name = table.replace('"', '""')
        database.execute(f'SELECT rowid FROM "{name}" LIMIT 1')
        return ["rowid"]
    except sqlite3.OperationalError:
        rows = database.execute("SELECT name FROM pragma_table_info(?) WHERE pk > 0", [table])
        return ['"' + one.replace('"', '""') + '"' for (one,) in rows.fetchall()]


def _row(
    database: sqlite3.Connection, table: str, where: str, key: tuple[object, ...],
    cells: tuple[object, ...], search: Search, *, delete: bool,
) -> None:  # fmt: skip
    """One row that holds something: it goes, or its texts are replaced where it can stay."""
    gone = f'DELETE FROM "{table}" WHERE {where}'
    if delete:
        database.execute(gone, key)
        return
    cursor = database.execute(f'SELECT * FROM "{table}" LIMIT 0')
    names = [one[0].replace('"', '""') for one in cursor.description]
    try:
        for name, cell in zip(names, cells, strict=True):
            data = cell.encode() if isinstance(cell, str) else cell
            if isinstance(data, bytes) and search.holds(data):
                new = cleaned_text(data, search)
                value = new.decode() if isinstance(cell, str) else new
                database.execute(f'UPDATE "{table}" SET "{name}" = ? WHERE {where}', [value, *key])
    except sqlite3.IntegrityError:
        database.execute(gone, key)

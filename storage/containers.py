"""A file as windows of plain bytes, whatever it is packed in.

Enters a path; leave windows that overlap by as much as the longest thing that is looked for. What
rows of tables hold comes as text with a NUL between cells. Raises ValueError for a file that says
it is packed and cannot be unpacked.
"""

import gzip
import io
import sqlite3
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import zstandard

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WINDOW = 1 << 20
_INNER = 256 << 20
"""Bytes of a packed file inside a packed one that are held to be looked into."""
_DEPTH = 3
_PATIENCE_S = 120.0
"""For a commit that holds the database."""
_HEADER = 16 << 20
"""Bytes of a weight file's head that are read; its tensors hold no text."""


_Reader: TypeAlias = IO[bytes] | gzip.GzipFile


class Window(NamedTuple):
    data: bytes
    inside: str = ""
    pages: bool = False
    """Bytes of a database's pages, where cells stand side by side."""


def windows_of(path: Path, overlap: int) -> Iterator[Window]:
    with path.open("rb") as file:
        head = file.read(16)
        file.seek(0)
        if path.suffix == ".safetensors":
            yield Window(file.read(min(_HEADER, 8 + int.from_bytes(head[:8], "little"))))
        elif head.startswith(b"SQLite format 3\0"):
            yield from _sqlite(path)
            yield from _cut(file, overlap, "", pages=True)
        elif head[8:12] == b"DUCK":
            yield from _duckdb(path)
            yield from _cut(file, overlap, "", pages=True)
        else:
            yield from _stream(file, overlap, "", 0)


def windows_in(data: bytes, overlap: int) -> Iterator[Window]:
    """The same of bytes that lie in no file here."""
    yield from _stream(io.BytesIO(data), overlap, "", 0)


def _stream(file: IO[bytes], overlap: int, inside: str, depth: int) -> Iterator[Window]:
    head = file.read(4)
    file.seek(0)
    if depth >= _DEPTH:
        yield from _cut(file, overlap, inside)
    elif head == b"\x28\xb5\x2f\xfd":
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        yield from _unpacked(reader, overlap, inside, depth)
    elif head[:2] == b"\x1f\x8b":
        yield from _unpacked(gzip.GzipFile(fileobj=file), overlap, inside, depth)
    elif head == b"PK\x03\x04":
        yield from _zip(file, overlap, inside, depth)
    elif head == b"PAR1":
        yield from _parquet(file, inside)
        yield from _cut(file, overlap, inside, pages=True)
    else:
        yield from _cut(file, overlap, inside)


def _unpacked(reader: _Reader, overlap: int, inside: str, depth: int) -> Iterator[Window]:
    """What comes out; it may be packed once more."""
    try:
        first = _read(reader, 4)
        if first[:2] in (b"\x1f\x8b", b"PK", b"PA") or first == b"\x28\xb5\x2f\xfd":
            whole = first + _read(reader, _INNER)
            yield from _stream(io.BytesIO(whole), overlap, inside, depth + 1)
        else:
            yield from _cut(reader, overlap, inside, first=first)
    except (zstandard.ZstdError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error


def _read(reader: _Reader, size: int) -> bytes:
    """Up to `size` bytes, however few come at once."""
    pieces, left = [], size
    while left and (piece := reader.read(min(left, WINDOW))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _cut(
    reader: _Reader, overlap: int, inside: str, *, pages: bool = False, first: bytes = b""
) -> Iterator[Window]:
    if pages:
        reader.seek(0)
    held = first
    while piece := reader.read(WINDOW):
        held += piece
        if len(held) >= WINDOW:
            yield Window(held, inside, pages)
            held = held[-overlap:]
    if held:
        yield Window(held, inside, pages)


def _zip(file: IO[bytes], overlap: int, inside: str, depth: int) -> Iterator[Window]:
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                with archive.open(member) as opened:
                    name = f"{inside}!{member.filename}".lstrip("!")
                    yield from _unpacked(opened, overlap, name, depth)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"it is no zip file that can be read: {error}") from error


def _parquet(file: IO[bytes], inside: str) -> Iterator[Window]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=512):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                yield Window(cells(column.to_pylist()), f"{inside}{name}")
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it is no Parquet file that can be read: {error}") from error


def cells(values: list[object]) -> bytes:
    """Cells beside each other; lists as JSON, so that token ids are found in them."""
    texts = []
    for value in values:
        if isinstance(value, str):
            texts.append(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, bytes):
            texts.append(value)
        elif value is not None:
            texts.append(msgspec.json.encode(value))
    return b"\0".join(texts)


def sqlite_tables(database: sqlite3.Connection) -> list[str]:
    """Tables whose rows can be read and changed; those that a virtual table keeps are its own."""
    rows = database.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' "
        "AND name NOT LIKE 'sqlite_%' UNION SELECT name FROM pragma_table_list "
        "WHERE schema = 'main' AND type = 'virtual'"
    ).fetchall()
    return sorted(name for (name,) in rows)


def _sqlite(path: Path) -> Iterator[Window]:
    quiet = not path.with_name(path.name + "-wal").exists()
    address = f"{path.resolve().as_uri()}?{'immutable=1' if quiet else 'mode=ro'}"
    try:
        database = sqlite3.connect(address, uri=True, timeout=10)
        try:
            database.text_factory = bytes
            for name in map(_text, sqlite_tables(database)):
                quoted = name.replace('"', '""')
                cursor = database.execute(f'SELECT * FROM "{quoted}"')
                while rows := cursor.fetchmany(500):
                    yield Window(cells([cell for row in rows for cell in row]), name)
        finally:
            database.close()
    except sqlite3.Error as error:
        raise ValueError(f"SQLite says: {error}") from error


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _duckdb(path: Path) -> Iterator[Window]:
    """Every row of every table."""
    import duckdb

    try:
        with _unlocked(path) as database:
            tables = database.execute(
                "SELECT table_name FROM duckdb_tables() WHERE NOT temporary ORDER BY 1"
            ).fetchall()
            for (name,) in tables:
                columns = database.execute(
                    "SELECT column_name FROM duckdb_columns() WHERE table_name = ?", [name]
                ).fetchall()
                each = ", ".join(f'"{column}"::VARCHAR' for (column,) in columns)
                cursor = database.execute(f'SELECT concat_ws(chr(0), {each}) FROM "{name}"')
                while rows := cursor.fetchmany(2000):
                    yield Window(b"\0".join(text.encode() for (text,) in rows), name)
    except duckdb.Error as error:
        raise ValueError(f"DuckDB says: {error}") from error


def _unlocked(path: Path) -> "DuckDBPyConnection":
    """The database to read from, once nobody writes to it."""
    import duckdb

    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return duckdb.connect(path, read_only=True, config={"memory_limit": "1GB"})
        except duckdb.IOException as error:
            if "lock" not in str(error) or time.monotonic() >= until:
                raise
        time.sleep(0.05)

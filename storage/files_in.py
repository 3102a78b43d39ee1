"""Files of any size as blocks of plain bytes: folders walked, gzip and zstd opened, bombs stopped.

What enters is a path that a person gave; what leaves are regular files in a fixed order, and their
bytes in blocks; Parquet, OTLP in protobuf and raw event streams leave as JSON lines. What a file
is, is told by its first bytes, not its name. Invariant: memory stays within some blocks whatever
the file holds, and what could be read before a fault is given first.
"""

import itertools
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from flywheel.errors import BadRecord

from . import events_in, otlp_in, parquet_in

_READ = 1 << 18
_BLOCK = 1 << 20
_ZSTD_READ = 1 << 11
"""Compressed bytes given to zstd at once: a block of 128 KiB may take 4 of them."""
_ZSTD_WINDOW = 1 << 27
MOST_RATIO = 400
"""Times that a file may expand, once it is past FREE_EXPANSION; gzip reaches 1,032."""
FREE_EXPANSION = 64 << 20

_BINARY = {
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ\x00": "compressed by xz",
    b"BZh": "compressed by bzip2",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
    b"SQLite format 3": "an SQLite database",
}


class Found(NamedTuple):
    path: Path
    problem: str | None
    """Why it cannot be read; None = it is a regular file."""
    size: int


def files_under(path: Path) -> Iterator[Found]:
    """`path` itself, or every file below it in order of name.

    Hidden names are passed over. Links are followed, each folder once, so that loops end.
    """
    yield from _walk(path, set(), top=True)


def blocks(path: Path) -> Iterator[bytes]:
    """The plain bytes of a file.

    Raises:
        BadRecord: it cannot be read, is cut off or expands too far; what came before is given.
    """
    try:
        with path.open("rb") as file:
            head = file.read(16)
            file.seek(0)
            if head.startswith(b"\x1f\x8b"):
                yield from _plain(_bounded(_gunzip(_pieces(file, _READ)), path))
            elif head.startswith(b"\x28\xb5\x2f\xfd"):
                yield from _plain(_bounded(_unzstd(_pieces(file, _ZSTD_READ)), path))
            elif head.startswith(parquet_in.MAGIC):
                yield from _bounded(parquet_in.json_lines(path), path)
            else:
                for magic, what in _BINARY.items():
                    if head.startswith(magic):
                        raise BadRecord(f"is {what}: give JSON or JSON lines, plain, .gz or .zst")
                yield from _plain(_pieces(file, _BLOCK))
    except OSError as error:
        raise BadRecord(f"cannot be read: {error.strerror or error}") from error


def _walk(path: Path, seen: set[tuple[int, int]], *, top: bool = False) -> Iterator[Found]:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            here = (status.st_dev, status.st_ino)
            if here in seen:
                return
            seen.add(here)
            names = sorted(os.listdir(path))
        elif stat.S_ISREG(status.st_mode):
            yield Found(path, None, status.st_size)
            return
        else:
            yield Found(path, "is neither a file nor a folder", 0)
            return
    except OSError as error:
        yield Found(path, f"cannot be read: {error.strerror or error}", 0)
        return
    for name in names:
        if not name.startswith("."):
            yield from _walk(path / name, seen)
    if top and not names:
        yield Found(path, "is an empty folder", 0)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece


def _plain(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """`blocks` as they are, or as JSON lines where they are OTLP in protobuf or a raw stream."""
    head = next(blocks, b"")
    whole = itertools.chain([head], blocks)
    if otlp_in.is_otlp(head):
        yield from otlp_in.json_lines(whole)
    elif events_in.is_events(head[: 1 << 16]):
        yield from events_in.json_lines(whole)
    else:
        yield from whole


def _gunzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=31)
    for piece in pieces:
        while piece:
            if unpacker.eof:  # another member follows, or padding
                piece = piece.lstrip(b"\x00")
                if not piece:
                    break
                unpacker = zlib.decompressobj(wbits=31)
            try:
                plain = unpacker.decompress(piece, _BLOCK)
            except zlib.error as error:
                raise BadRecord(f"is damaged: {error}") from error
            if plain:
                yield plain
            piece = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    if not unpacker.eof:
        raise BadRecord("is cut off: the gzip stream ends before its end mark")


def _unzstd(pieces: Iterator[bytes]) -> Iterator[bytes]:
    import zstandard

    factory = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    unpacker = factory.decompressobj()
    whole = False
    for piece in pieces:
        while piece:
            if unpacker.eof:
                unpacker = factory.decompressobj()
            try:
                plain = unpacker.decompress(piece)
            except zstandard.ZstdError as error:
                raise BadRecord(f"is damaged: {error}") from error
            for start in range(0, len(plain), _BLOCK):
                yield plain[start : start + _BLOCK]
            whole = unpacker.eof
            piece = unpacker.unused_data if whole else b""
    if not whole:
        raise BadRecord("is cut off: the zstd stream ends before its end mark")


def _bounded(plain: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Stops where the file expands as no log does."""
    size = max(path.stat().st_size, 1)
    total = 0
    for block in plain:
        total += len(block)
        if total > FREE_EXPANSION and total > MOST_RATIO * size:
            raise BadRecord(
                f"expands to over {total >> 20} MiB from {size:,} bytes, as no log does: "
                "unpack it yourself if it is one"
            )
        yield block

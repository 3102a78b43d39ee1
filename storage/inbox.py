"""The inbox: where any process leaves records for the committer, without holding the database.

Records enter; an immutable segment leaves, whole under its name or not there at all. A segment is a
zstd frame with a checksum, of one header line and one line a record (see `storage.envelope`), or of
rows that are ready for the tables (see `storage.prepared`).
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

import zstandard

from flywheel import durable
from flywheel.errors import BadRecord, Busy, CorruptFile
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import new_ulid
from storage import prepared
from storage.envelope import AnyRecord, encode

SUFFIX = ".segment"
_HEADER = b"flywheel-segment 1 "
_LARGEST = 8 << 30
"""Bytes that a segment may say it unpacks to; more is a wrong or hostile file."""

_DENSEST = 1 << 15
"""Bytes that one byte of zstd stands for at most: a block of 128 KiB takes four."""
_FRAME_HEAD = 18
"""Bytes that a zstd frame's header has at most."""
_LEDGER_WAIT_S = 10.0


class Inbox:
    def __init__(self, home: Home) -> None:
        self._home = home

    def append(self, records: Sequence[AnyRecord], *, name: str | None = None) -> str:
        """Writes `records` as one segment, durably, and returns its name.

        Args:
            records: a few to some ten thousand; the committer holds a segment in memory at once.
            name: makes it idempotent: a segment of this name that waits or was committed stays, and
                nothing is written. None = a new one.

        Raises:
            BadRecord: one of them has no stored form; nothing was written.
            Full: no space left; nothing was written.
        """
        given, name = name, new_ulid() if name is None else _shortened(name)
        path = self._home.inbox / (quote(name, safe="") + SUFFIX)
        if given is not None and (path.exists() or self._committed(name)):
            return name
        _write_new(path, pack([encode(record) for record in records]))
        return name

    def append_rows(self, plain: bytes, *, name: str) -> str:
        """The same of rows that are ready (see `storage.prepared`). Whether the name was committed
        is left to the committer, which takes in none twice."""
        path = self._home.inbox / (quote(name, safe="") + SUFFIX)
        if not path.exists():
            _write_new(path, packed(plain))
        return name

    def pending(self) -> list[Path]:
        """Segments that wait for the committer, oldest name first."""
        if not self._home.inbox.is_dir():
            return []
        return sorted(self._home.inbox.glob(f"*{SUFFIX}"))

    def _committed(self, name: str) -> bool:
        from storage.queries import committed

        try:
            return committed(self._home, name, wait_s=_LEDGER_WAIT_S)
        except Busy:
            # The committer looks again, and takes in no name twice.
            return False


def pack(lines: Sequence[bytes]) -> bytes:
    """The bytes of a segment."""
    return packed(b"\n".join([_HEADER + str(len(lines)).encode(), *lines, b""]))


def packed(plain: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=True)
    return packer.compress(plain)


def unpack(data: bytes) -> list[bytes]:
    """The lines of a segment; of one that holds rows, the lines that say the same.

    Raises:
        CorruptFile: it is cut, changed, or no segment at all.
    """
    plain = opened(data)
    if plain.startswith(prepared.HEADER):
        return [encode(record) for record in prepared.records(prepared.tables(plain))]
    return lines_of(plain)


def opened(data: bytes) -> bytes:
    """The plain bytes of a segment, of lines or of rows.

    Raises:
        CorruptFile: it is cut or changed.
    """
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= min(_LARGEST, len(data) * _DENSEST):
            raise CorruptFile("its size is not in its header, or too large")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptFile(f"it cannot be unpacked: {error}") from error


def lines_of(plain: bytes) -> list[bytes]:
    """
    Raises:
        CorruptFile: it holds no lines, or not as many as it says.
    """
    header, *lines = plain.split(b"\n")
    if not header.startswith(_HEADER) or not lines or lines.pop() != b"":
        raise CorruptFile("it does not begin and end as a segment does")
    if header != _HEADER + str(len(lines)).encode():
        raise CorruptFile(f"it says {header[len(_HEADER) :]!r} records and holds {len(lines)}")
    return lines


def plain_size(path: Path) -> tuple[int, bool]:
    """How many bytes a segment unpacks to, as its head says, and whether they are rows that are
    ready; of one that cannot be unpacked, its own size."""
    with path.open("rb") as file:
        try:
            size = zstandard.frame_content_size(file.read(_FRAME_HEAD))
            file.seek(0)
            with zstandard.ZstdDecompressor().stream_reader(file) as plain:
                return max(size, 0), plain.read(len(prepared.HEADER)) == prepared.HEADER
        except zstandard.ZstdError:
            return path.stat().st_size, False


def name_of(path: Path) -> str:
    return unquote(path.name.removesuffix(SUFFIX))


def _shortened(name: str) -> str:
    """A name that fits a file's, the same for the same name."""
    if not name:
        raise BadRecord("a segment's name is empty: give one, or none")
    if len(quote(name, safe="")) <= 200:
        return name
    return name[:20] + "-" + hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def _write_new(path: Path, data: bytes) -> None:
    """Makes `data` visible as `path`; one that is already there stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with durable.no_space(path):
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            failpoint("store.segment_written")
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
    finally:
        os.unlink(temporary)
    durable.sync_folder(path.parent)

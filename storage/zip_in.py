"""Zip archives read where they lie: Inspect's .eval logs, and archives of JSON files.

A path enters; the files in it leave, each as its name and its rows. Nothing is unpacked to disk, so
that no name in an archive leads anywhere. Invariant: what is read is bounded, member by member and
together, whatever the archive says of itself.
"""

import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from flywheel.errors import BadRecord
from storage.files_in import FREE_EXPANSION, MOST_RATIO
from storage.json_in import decode
from storage.rows_in import KEPT_OF_LONG, Row, rows

MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
MOST_MEMBERS = 100_000
_MOST_DIRECTORY = 64 << 20
"""Bytes of an archive's table of members, which is held in memory."""
_BLOCK = 1 << 20
_READ = (".json", ".jsonl", ".ndjson")
_sample = re.compile(r"samples/[^/]+\.json")
_HEADERS = ("header.json", "_journal/start.json")
_SAMPLE_NEEDS = ("version", "status", "eval", "plan")
"""Keys of an Inspect log's header that go with each of its samples."""


class Member(NamedTuple):
    name: str
    rows: Iterator[Row]


def is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) in MAGIC
    except OSError:
        return False


def zip_files(path: Path, max_line: int) -> Iterator[Member]:
    """The files of an archive; "" names the archive itself. What is wrong with it is a row."""
    try:
        with path.open("rb") as file:
            _check_directory(file, path.stat().st_size)
            with zipfile.ZipFile(file) as archive:
                yield from _members(_Reader(archive, path.stat().st_size, max_line))
    except BadRecord as error:
        yield Member("", iter([Row(1, b"", error.reason)]))
    except OSError as error:
        yield Member("", iter([Row(1, b"", f"cannot be read: {error.strerror or error}")]))
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        yield Member("", iter([Row(1, b"", f"is a damaged zip archive: {error}")]))


class _Reader:
    """The members of one archive, with what was expanded so far."""

    def __init__(self, archive: zipfile.ZipFile, size: int, max_line: int) -> None:
        self.archive, self.size, self.max_line = archive, max(size, 1), max_line
        self.members = {one.filename: one for one in archive.infolist() if not one.is_dir()}
        self.expanded = 0

    def blocks(self, name: str) -> Iterator[bytes]:
        """
        Raises:
            BadRecord: it is damaged, locked, or expands too far.
        """
        try:
            with self.archive.open(self.members[name]) as file:
                while block := file.read(_BLOCK):
                    self.expanded += len(block)
                    if self.expanded > max(FREE_EXPANSION, MOST_RATIO * self.size):
                        raise BadRecord(
                            f"expands to over {self.expanded >> 20} MiB from {self.size:,} bytes, "
                            "as no log does: unpack it yourself if it is one"
                        )
                    yield block
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise BadRecord(f"is damaged: {error}") from error
        except (RuntimeError, NotImplementedError) as error:  # a password, a rare compression
            raise BadRecord(f"cannot be unpacked: {error}") from error

    def whole(self, name: str) -> bytes:
        """
        Raises:
            BadRecord: as `blocks`, or it is over `max_line`, or no JSON.
        """
        held, size = [], 0
        for block in self.blocks(name):
            held.append(block)
            size += len(block)
            if size > self.max_line:
                raise BadRecord(
                    f"has over {self.max_line:,} bytes: raise the limit with --max-line"
                )
        return b"".join(held)


def _members(reader: _Reader) -> Iterator[Member]:
    header = next((name for name in _HEADERS if name in reader.members), None)
    if header is not None:
        yield Member("", _inspect(reader, header))
        return
    named = sorted(name for name in reader.members if name.lower().endswith(_READ))
    if not named:
        raise BadRecord("is a zip archive without a .json or .jsonl file in it")
    for name in named:
        yield Member(name, rows(reader.blocks(name), reader.max_line))


def _inspect(reader: _Reader, header: str) -> Iterator[Row]:
    """A row for the log's header with its summaries, then one for each sample."""
    try:
        head = decode(reader.whole(header))
    except BadRecord as error:
        yield Row(1, b"", f"{header} {error.reason}")
        return
    if not isinstance(head, dict):
        yield Row(1, b"", f"{header} is not the header of an Inspect log")
        return
    samples = sorted(name for name in reader.members if _sample.fullmatch(name))
    others = {
        name: msgspec.Raw(data)
        for name in ("summaries.json", "reductions.json")
        if (data := _sound(reader.whole, name, reader.members)) is not None
    }
    yield Row(1, msgspec.json.encode({"inspect_log": head, "samples": len(samples), **others}))
    needed = msgspec.json.encode({key: head[key] for key in _SAMPLE_NEEDS if key in head})
    for number, name in enumerate(samples, 2):
        try:
            data = reader.whole(name)
        except BadRecord as error:
            yield Row(number, b"", f"{name} {error.reason}")
            continue
        if data.lstrip()[:1] != b"{":
            yield Row(number, data[:KEPT_OF_LONG], f"{name} is not JSON")
        else:
            yield Row(number, b'{"inspect_log":%b,"sample":%b}' % (needed, data.strip()))


def _sound(
    read: Callable[[str], bytes], name: str, there: dict[str, zipfile.ZipInfo]
) -> bytes | None:
    if name not in there:
        return None
    try:
        data = read(name)
        decode(data)
    except BadRecord:
        return None  # the samples themselves hold all of it
    return data


def _check_directory(file: IO[bytes], size: int) -> None:
    """Raises BadRecord where the table of members is too large to be held."""
    tail = 22 + (1 << 16) + 76
    file.seek(max(0, size - tail))
    end = file.read(tail)
    file.seek(0)
    at = end.rfind(b"PK\x05\x06")
    if at < 0 or len(end) < at + 22:
        raise BadRecord("is cut off: the zip archive ends before its table of members")
    members = int.from_bytes(end[at + 10 : at + 12], "little")
    table = int.from_bytes(end[at + 12 : at + 16], "little")
    at = end.rfind(b"PK\x06\x06")
    if at >= 0 and (members == 0xFFFF or table == 0xFFFFFFFF):  # zip64
        members = int.from_bytes(end[at + 32 : at + 40], "little")
        table = int.from_bytes(end[at + 40 : at + 48], "little")
    if members > MOST_MEMBERS or table > _MOST_DIRECTORY:
        raise BadRecord(f"is a zip archive of {members:,} files: up to {MOST_MEMBERS:,} are read")

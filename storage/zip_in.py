"""Zip archives read where they lie: Inspect's .eval logs, and archives of JSON files.

A path enters; the files in it leave, each as its name and its rows. Nothing is unpacked to disk, so
that no name in an archive leads anywhere. Invariant: what is read is bounded, member by member and
together, whatever the archive says of itself.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from flywheel.errors import BadRecord
from storage.files_in import FREE_EXPANSION, MOST_RATIO
from storage.json_in import decode
from storage.rows_in import KEPT_OF_LONG, Row, rows

MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
MOST_MEMBERS = 100_000
_MOST_DIRECTORY = 64 << 20
"""Bytes of an archive's table of members, which is held in memory."""
_ENTRY = 46
"""Bytes of a member in that table, besides its name and what else is said of it."""
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
        with _Bounded(path.open("rb", buffering=0)) as file, _opened(file) as archive:
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


class _Bounded(io.BufferedReader):
    """An archive's bytes, of which a table of members is only given out where it can be held.

    What an archive says of its table, in two records that may differ, and of how many members it
    has, which Python does not even look at, is not asked: what is really read of it is counted.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """
        Raises:
            BadRecord: the table of members is too large.
        """
        if size is not None and size > _MOST_DIRECTORY:
            raise BadRecord(
                f"has a table of members of {size:,} bytes: up to {_MOST_DIRECTORY:,} are read"
            )
        data = super().read(size)
        if len(data) > _ENTRY * MOST_MEMBERS and _entries(data) > MOST_MEMBERS:
            raise BadRecord(f"is a zip archive of over {MOST_MEMBERS:,} files: so many are read")
        return data


def _entries(table: bytes) -> int:
    """How many members a table has, one more than MOST_MEMBERS at most; 0 = it is none."""
    at = found = 0
    while found <= MOST_MEMBERS and table[at : at + 4] == b"PK\x01\x02":
        lengths = (table[at + place : at + place + 2] for place in (28, 30, 32))
        at += _ENTRY + sum(int.from_bytes(one, "little") for one in lengths)
        found += 1
    return found


def _opened(file: _Bounded) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        if "not a zip file" in str(error):  # it begins as one
            reason = "is cut off: the zip archive ends before its table of members"
            raise BadRecord(reason) from error
        raise

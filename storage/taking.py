"""A chunk of rows taken in: read by the formats, kept raw, left in the inbox.

Rows enter, of a file or of requests; leave one inbox segment, the chunk's bytes in the raw store,
and what could not be understood in the quarantine. Invariant: a segment's name stands for its
content, so taking the same chunk twice changes nothing.
"""

from functools import cached_property
from typing import NamedTuple

import msgspec

from flywheel.errors import BadRecord
from flywheel.home import Home
from flywheel.ids import digest_bytes
from storage.belonging import NOBODY, Belonging
from storage.chunk import ChunkRead, read_chunk
from storage.envelope import encode
from storage.inbox import Inbox
from storage.prepared import Preparing, Unprepared, prepare
from storage.quarantine import quarantine
from storage.raw import RawStore
from storage.refused_rows import Keeping
from storage.rows import no_collection
from storage.rows_in import Row
from storage.tombstones import Tombstones, tombstones


class Taken(NamedTuple):
    read: ChunkRead
    kept: str | None
    """The quarantine's file with all rejects, relative to the home; None = there are none."""


class Taking:
    """Takes in chunks of one project.

    Args:
        format: a key of FORMATS; "auto" tells by each row.
        told: whose the traces are, where they do not say it themselves.
    """

    def __init__(
        self, home: Home, project: str, format: str = "auto", told: Belonging = NOBODY
    ) -> None:
        self._home, self._project, self._format = home, project, format
        self._inbox, self._store, self._told = Inbox(home), RawStore(home), told

    @cached_property
    def _stones(self) -> Tombstones:
        return tombstones(self._home)

    def take(self, segment: str, chunk: list[Row], data: bytes, key: str) -> Taken:
        """
        Args:
            data, key: the chunk's rows joined by line breaks, and their digest.

        Raises:
            Full: no space left; what was written stays, and is found again by the next try.
        """
        with no_collection():
            return self._take(segment, chunk, data, key)

    def _take(self, segment: str, chunk: list[Row], data: bytes, key: str) -> Taken:
        keep = Keeping(self._store)

        def read_as(ready: Preparing | None) -> ChunkRead:
            return read_chunk(chunk, key, self._project, self._format, keep.put, self._told, ready)

        # What may have been erased is taken out first.
        read = read_as(None if self._stones else Preparing())
        if self._stones:
            kept = keep.without_erased(read, data, key, self._stones)
            data, key = kept, key if kept is data else digest_bytes(kept)
        if read.some or any(isinstance(held, str) for _, _, held in read.rejects):
            self._store.put(data, key=key)
        if read.some:
            try:
                plain = prepare(read.records) if read.ready is None else read.ready.packed()
                self._inbox.append_rows(plain, name=segment)
            except Unprepared:
                read = read if read.ready is None else read_as(None)
                self._append(segment, read)
        return Taken(read, self._quarantine(segment, read) if read.rejects else None)

    def _append(self, segment: str, read: ChunkRead) -> None:
        """As lines, where something does not fit its column: it alone is lost."""
        try:
            self._inbox.append(read.records, name=segment)
        except BadRecord:
            _drop_unstorable(read)
            self._inbox.append(read.records, name=segment)

    def _quarantine(self, segment: str, read: ChunkRead) -> str:
        """All rejects of one chunk as JSON lines, their bytes as text where they are text."""
        lines = []
        for line, error, data in read.rejects:
            entry: dict[str, object] = {
                "row": line + 1,
                "field": error.field,
                "reason": error.reason,
            }
            if isinstance(data, str):
                entry["raw"] = data
            else:
                try:
                    entry["data"] = data.decode()
                except UnicodeDecodeError:
                    entry["base64"] = data
            lines.append(msgspec.json.encode(entry))
        reason = f"{len(lines)} rows of an import; each line says its own reason"
        name = f"{segment}.jsonl"
        return self._home.relative(quarantine(self._home, name, b"\n".join([*lines, b""]), reason))


def _drop_unstorable(read: ChunkRead) -> None:
    """Moves records that have no stored form to the rejects."""
    stored = []
    for record in read.records:
        try:
            encode(record)
            stored.append(record)
        except BadRecord as error:
            read.rejects.append((0, BadRecord(error.reason), msgspec.json.encode(repr(record))))
    read.records[:] = stored

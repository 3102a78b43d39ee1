"""What was erased and comes again: it is counted, and none of its bytes stay.

Enter lines and rows that the committer will not take in; leave their journal's lines as blanks and
the raw store without what only they name. Invariant: what is blanked lies before the offset that
the ledger has, so that nobody reads it again.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel.errors import CorruptFile
from flywheel.home import Home
from flywheel.records import Feedback, Trace
from storage import inbox, journal, prepared, receipts
from storage.absorb import Line
from storage.envelope import encode
from storage.journal_file import SUFFIX
from storage.prepared import Tables
from storage.raw import RawStore, part
from storage.raw_anew import rename
from storage.tombstones import Tombstones

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_NAMED = re.compile(rb'"(?:digest|raw)":"([0-9a-f]{32})["#]')
_HEAD = 9
"""Bytes of a journal's line before its record: the checksum."""


class Refused:
    """What one commit refused."""

    def __init__(self, home: Home, stones: Tombstones) -> None:
        self._home, self._stones = home, stones
        self._places: list[tuple[str, int, int]] = []
        self._digests: set[str] = set()
        self._chunks: dict[str, list[str]] = {}
        """Raw chunk -> places of refused rows in it."""
        self.count = 0

    def lines(self, found: list[tuple[Line, Any]]) -> None:
        self.count += len(found)
        for line, record in found:
            self._note(record)
            if line.source.startswith(_JOURNAL):
                self._places.append((line.source, line.place, len(line.data)))

    def rows(self, found: list[Tables]) -> list[Tables]:
        """`found` without what was erased."""
        return [self._rows(one) for one in found] if self._stones else found

    def _rows(self, tables: Tables) -> Tables:
        records, staying = self._staying(tables)
        if len(staying) == records:
            return tables
        self.count += records - len(staying)
        return prepared.tables(prepared.prepare(staying))

    def _staying(self, tables: Tables) -> tuple[int, list[Trace | Feedback]]:
        """How many records rows are of, and those that are not refused; notes the others."""
        staying, count = [], 0
        for count, one in enumerate(prepared.records(tables), 1):  # noqa: B007
            if self._stones.refuses(one):
                self._note(one)
            else:
                staying.append(one)
        return count, staying

    def _note(self, record: Any) -> None:
        if isinstance(record, Trace):
            self._digests.update(one.decode() for one in _NAMED.findall(encode(record)))
            digest, chunked, place = (record.raw or "").partition("#")
            if chunked:
                self._chunks.setdefault(digest, []).append(place)

    def strike(self, database: "DuckDBPyConnection") -> None:
        """Inside the transaction: chunks that hold refused rows beside those of others are kept
        without them, under a new digest that the others' rows name from then on. An import that was
        under way when something was erased had put them there."""
        store, renamed = RawStore(self._home), {}
        for digest, places in self._chunks.items():
            if not _is_named(database, digest):
                continue
            with contextlib.suppress(KeyError, CorruptFile):
                made = bytearray(store.get(digest))
                for place in places:
                    start, length = part(place, len(made))
                    made[start : start + length] = b" " * length
                renamed[digest] = store.put(bytes(made))
        if pairs := {old: new for old, new in renamed.items() if old != new}:
            rename(database, pairs)

    def again(self, paths: list[Path]) -> None:
        """Segments that were taken in already and still lie there: the commit that took them was
        killed, perhaps before what it refused was gone."""
        for path in paths if self._stones else ():
            with contextlib.suppress(FileNotFoundError, CorruptFile):
                plain = inbox.opened(path.read_bytes())
                if plain.startswith(prepared.HEADER):
                    self._staying(prepared.tables(plain))

    def leave_nothing(self, database: "DuckDBPyConnection") -> None:
        """After the transaction stands."""
        for source, place, length in self._places:
            _blank(self._home, source, place, length)
        for digest in self._digests:
            if not _is_named(database, digest):
                RawStore(self._home).drop(digest)
        receipts.drop(self._home, set(self._chunks))  # those chunks would be known by their bytes


_JOURNAL = "journal:"


def _blank(home: Home, source: str, place: int, length: int) -> None:
    path = home.journal / (source.removeprefix(_JOURNAL) + SUFFIX)
    blank = journal.frame(b" " * length)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.pwrite(handle, blank[: _HEAD + length], place)
        os.fdatasync(handle)
    finally:
        os.close(handle)


def _is_named(database: "DuckDBPyConnection", digest: str) -> bool:
    for query in (
        "SELECT 1 FROM all_traces WHERE starts_with(raw, $one) "
        "OR len(list_filter(raws, lambda key: starts_with(key, $one))) > 0 LIMIT 1",
        "SELECT 1 FROM messages WHERE contains(body, $one) LIMIT 1",
        "SELECT 1 FROM spans WHERE contains(rest, $one) LIMIT 1",
    ):
        if database.execute(query, {"one": digest}).fetchall():
            return True
    return False

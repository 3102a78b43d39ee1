"""What was erased and comes again: it is counted, and none of its bytes stay.

Enter lines and rows that the committer will not take in; leave their journal's lines as blanks and
the raw store without what only they name. Invariant: what is blanked lies before the offset that
the ledger has, so that nobody reads it again.
"""

import os
import re
from typing import TYPE_CHECKING, Any

from flywheel.home import Home
from flywheel.records import Trace
from storage import journal, prepared
from storage.absorb import Line
from storage.envelope import encode
from storage.journal_file import SUFFIX
from storage.prepared import Tables
from storage.raw import RawStore
from storage.tombstones import Tombstones

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_NAMED = re.compile(rb'"(?:digest|raw)":"([0-9a-f]{32})"')
_HEAD = 9
"""Bytes of a journal's line before its record: the checksum."""


class Refused:
    """What one commit refused."""

    def __init__(self, home: Home, stones: Tombstones) -> None:
        self._home, self._stones = home, stones
        self._places: list[tuple[str, int, int]] = []
        self._digests: set[str] = set()
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
        records = list(prepared.records(tables))
        staying = [one for one in records if not self._stones.refuses(one)]
        if len(staying) == len(records):
            return tables
        self.count += len(records) - len(staying)
        for one in records:
            if self._stones.refuses(one):
                self._note(one)
        return prepared.tables(prepared.prepare(staying))

    def _note(self, record: Any) -> None:
        if isinstance(record, Trace):
            self._digests.update(one.decode() for one in _NAMED.findall(encode(record)))

    def leave_nothing(self, database: "DuckDBPyConnection") -> None:
        """After the transaction stands."""
        for source, place, length in self._places:
            _blank(self._home, source, place, length)
        for digest in self._digests:
            if not _is_named(database, digest):
                RawStore(self._home).drop(digest)


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
        "OR len(list_filter(raws, key -> starts_with(key, $one))) > 0 LIMIT 1",
        "SELECT 1 FROM messages WHERE contains(body, $one) LIMIT 1",
        "SELECT 1 FROM spans WHERE contains(rest, $one) LIMIT 1",
    ):
        if database.execute(query, {"one": digest}).fetchall():
            return True
    return False

"""The one committer: what waits in the inbox and in journals becomes rows of the database.

Segments and journals enter; one transaction takes in a batch of them with their ledger rows, and
only then do their files go. So a kill at any step, or a file that comes twice, changes nothing.
What cannot be read goes to quarantine with its reason, and the rest goes on.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flywheel import durable
from flywheel.errors import CorruptFile
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.progress import report
from flywheel.records import Record
from storage import inbox, journal, ledger, prepared
from storage.absorb import Line, absorb
from storage.absorb_rows import absorb_rows
from storage.cards import refresh as refresh_cards
from storage.copies import mark_copies
from storage.database import outdated, writing
from storage.prepared import Tables
from storage.quarantine import quarantine, quarantine_file
from storage.refusing import Refused
from storage.threads import stitch
from storage.tombstones import standing

_BATCH_BYTES = 256 << 20
"""Unpacked, in one transaction; readers get their turn between two. The database packs its last
120,000 rows of each table anew with each transaction, so that many small ones cost more."""
_OF_LINES = 5
"""Times that the bytes of lines count: they are read one by one."""
_SLICE_RECORDS, _SLICE_BYTES = 5_000, 32 << 20
"""Of lines that are held as Python objects at once."""


class CommitReport(Record, frozen=True, kw_only=True):
    segments: int = 0
    """Taken in: segments, and journals that had something new."""
    traces: int = 0
    """New ones."""
    spans: int = 0
    """New ones, in new and in known traces."""
    duplicates: int = 0
    """Records that changed nothing: delivered before, whole or as parts."""
    copies: int = 0
    """New traces that are another one under other ids: kept, and counted once."""
    grades: int = 0
    feedback: int = 0
    problems: int = 0
    quarantined: int = 0
    """Lines and whole files."""
    refused: int = 0
    """Records of what was erased: they came again, or late."""


@dataclass
class _Batch:
    sequence: int
    consumed: dict[str, int]
    """How much of each file was taken in, before this transaction or by it."""
    noted: list[ledger.Entry] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    done: list[Path] = field(default_factory=list)
    """Files that may go once the transaction stands."""
    again: list[Path] = field(default_factory=list)
    """Of these, segments that an earlier transaction took in."""

    def note(self, name: str, records: int, consumed: int) -> None:
        self.noted.append(ledger.Entry(name, self.sequence, records, consumed))
        self.consumed[name] = consumed
        self.counts["segments"] += 1


def commit(home: Home, *, wait_s: float = 300.0) -> CommitReport:
    """Takes in everything that waits; what is appended meanwhile may wait for the next time.

    Raises:
        Busy: another commit or a reader held the database for longer than `wait_s`.
        Full: no space left; what was not taken in waits where it is.
    """
    counts: Counter[str] = Counter()
    batches = list(_batches([*inbox.Inbox(home).pending(), *journal.files(home)]))
    if not batches:
        bring_up(home, wait_s=wait_s)
    for number, paths in enumerate(batches):
        counts.update(_commit(home, paths, wait_s))
        report("committing", number + 1, len(batches))
    names = CommitReport.__struct_fields__
    return CommitReport(**{name: counts[name] or counts[name.removesuffix("s")] for name in names})


def bring_up(home: Home, *, wait_s: float = 300.0) -> None:
    """A store of an earlier version becomes one of this code's; a current one is only looked at.

    Raises:
        Busy, Full: as `commit`.
    """
    if outdated(home, wait_s=wait_s):
        _commit(home, [], wait_s)


def _batches(paths: list[Path]) -> Iterator[list[Path]]:
    batch: list[Path] = []
    size = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            size += _weight(path)
            batch.append(path)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _weight(path: Path) -> int:
    """Of a file, by what it takes to hold and read it."""
    if not path.name.endswith(inbox.SUFFIX):
        return path.stat().st_size * _OF_LINES
    size, rows = inbox.plain_size(path)
    return size if rows else size * _OF_LINES


def _commit(home: Home, paths: list[Path], wait_s: float) -> Counter[str]:
    with writing(home, wait_s=wait_s) as database:
        database.begin()
        before = ledger.consumed(database, [_name(path) for path in paths])
        batch = _Batch(ledger.next_sequence(database), dict(before))
        rows: list[Tables] = []
        stones = standing(home, database)
        refused = Refused(home, stones)
        for lines in _slices(_lines(home, batch, rows, paths)):
            absorbed = absorb(database, batch.sequence, lines, stones.refuses if stones else None)
            refused.lines(absorbed.refused)
            batch.counts.update(absorbed.counts)
            for line, reason in absorbed.bad:
                quarantine(home, f"{_flat(line.source)}-{line.place}", line.data, reason)
                batch.counts["quarantined"] += 1
        refused.again(batch.again)
        if rows := refused.rows(rows):
            batch.counts.update(absorb_rows(database, batch.sequence, rows))
        refused.strike(database)
        ledger.write(database, batch.noted, before)
        batch.counts["refused"] += refused.count
        batch.counts["copies"] += mark_copies(database, batch.sequence)
        stitch(database, batch.sequence)
        refresh_cards(database, batch.sequence)
        failpoint("store.before_commit")
        database.commit()
        failpoint("store.after_commit")
        refused.leave_nothing(database)
    for path in batch.done:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in batch.done}:
        durable.sync_folder(folder)
    return batch.counts


def _lines(home: Home, batch: _Batch, rows: list[Tables], paths: list[Path]) -> Iterator[Line]:
    """The lines of all files; rows that are ready are put beside."""
    for path in paths:
        try:
            if path.parent == home.inbox:
                yield from _segment_lines(home, batch, rows, path)
            else:
                yield from _journal_lines(home, batch, path)
        except FileNotFoundError:
            continue


def _segment_lines(home: Home, batch: _Batch, rows: list[Tables], path: Path) -> Iterator[Line]:
    name = inbox.name_of(path)
    if name in batch.consumed:
        batch.again.append(path)
        batch.done.append(path)
        return
    data = path.read_bytes()
    lines: list[bytes] = []
    try:
        plain = inbox.opened(data)
        if ready := plain.startswith(prepared.HEADER):
            rows.append(prepared.tables(plain))
        else:
            lines = inbox.lines_of(plain)
    except CorruptFile as error:
        quarantine_file(home, path, str(error))
        batch.counts["quarantined"] += 1
        return
    for place, line in enumerate(lines, 1):
        yield Line(name, place, line)
    records = prepared.count(rows[-1]) if ready else len(lines)
    batch.note(name, records, len(data))
    batch.done.append(path)


def _journal_lines(home: Home, batch: _Batch, path: Path) -> Iterator[Line]:
    name = journal.name_of(path)
    last = journal.abandoned(path)
    offset = batch.consumed.get(name, 0)
    if path.stat().st_size > offset:
        tail = journal.read(path, offset, last=last)
        for place, line in tail.lines:
            yield Line(name, place, line)
        for place, line in tail.torn:
            reason = "the line is cut or changed: its writer was killed, or the disk failed"
            quarantine(home, f"{_flat(name)}-{place}", line, reason)
            batch.counts["quarantined"] += 1
        if tail.end > offset:
            batch.note(name, len(tail.lines), tail.end)
    if last:
        batch.done.append(path)


def _slices(lines: Iterator[Line]) -> Iterator[list[Line]]:
    held: list[Line] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line.data)
        if len(held) >= _SLICE_RECORDS or size >= _SLICE_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _name(path: Path) -> str:
    """Of a file in the ledger."""
    return inbox.name_of(path) if path.name.endswith(inbox.SUFFIX) else journal.name_of(path)


def _flat(name: str) -> str:
    """A ledger name as a file's."""
    return name.replace(os.sep, "_").replace(":", "-")[:150]

"""`flywheel import`: files of other systems' traces into the store, each row once.

A path enters; the store holds its traces and a report leaves. Rows are read in chunks: a chunk is
one raw object, one inbox segment named by its content, and one receipt, so that what is known is
not read again. `Trace.raw` is `DIGEST#OFFSET+LENGTH`: a slice of the chunk in the raw store (see
`raw_row`). Invariant: bad input never raises; it is quarantined with its place and reason.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.ids import digest, digest_bytes
from flywheel.progress import report
from flywheel.records import Record
from storage import journal, receipts
from storage.belonging import NOBODY, Belonging
from storage.committer import commit
from storage.files_in import blocks, files_under
from storage.formats import FORMATS
from storage.inbox import Inbox
from storage.raw import RawStore, part
from storage.receipts import Receipt, Reject, Stored
from storage.rows import no_collection
from storage.rows_in import Row, chunks, rows
from storage.taking import Taking
from storage.tally import Tally
from storage.whole import joined
from storage.zip_in import is_zip, zip_files

READER = 4
"""Raised when formats read rows otherwise than before, so that known chunks are read again."""


class ImportReport(Record, frozen=True, kw_only=True, omit_defaults=False):
    files: int
    """Files looked at."""
    traces: int
    """New to the store."""
    spans: int
    """New to the store."""
    duplicates: int
    """Spans read that the store, or this import, had already."""
    quarantined: int
    """Rows, parts of rows and files that could not be understood."""
    unmapped_fields: dict[str, int]
    """Values that no record field holds, by dotted path: they stand among the attributes, or only
    in the row itself (`Trace.raw`) where they merely place it."""
    formats: dict[str, int]
    """Rows understood, by format."""
    rejects: tuple[Reject, ...] = ()
    """The first MOST_REJECTS of the quarantined."""
    refused: int = 0
    """Records of what was erased, which came again; nothing of them was kept."""
    readable: int = 0
    """Rows understood, known ones included. 0 = nothing was readable."""


def import_path(
    home: Home,
    path: Path | str | Sequence[Path],
    *,
    project: str,
    format: str = "auto",
    max_line: int = 64 * 2**20,
    told: Belonging = NOBODY,
) -> ImportReport:
    """Imports a file, or every file of a folder, or several of these.

    Args:
        format: a key of FORMATS; "auto" tells by each row.
        max_line: bytes that one row may have.
        told: whose the traces are, where they do not say it themselves; a refusal always counts.

    Raises:
        UsageError: no such format.
        Busy: the store is held by another process for too long; run it again, nothing is lost.
        Full: no space left; run it again, what was appended stays.
    """
    known, before = receipts.found(home, project)
    paths = [path] if isinstance(path, Path | str) else path
    tally = take_files(
        home, paths, project=project, format=format, max_line=max_line, told=told, known=known
    )
    return committed(home, project, before, tally)


def take_files(
    home: Home,
    paths: Sequence[Path | str],
    *,
    project: str,
    format: str = "auto",
    max_line: int = 64 * 2**20,
    told: Belonging = NOBODY,
    known: frozenset[str] | None = None,
) -> Tally:
    """Reads files into the inbox and commits nothing: any number of processes may at once.

    Args:
        known: names of segments that wait or were committed; None = it is looked up.

    Raises:
        UsageError, Full: as `import_path`.
    """
    if format != "auto" and format not in FORMATS:
        raise UsageError(f"no format {format!r}: auto, {', '.join(FORMATS)} are there")
    known = receipts.committed_segments(home) if known is None else known
    importing = _Import(home, project, format, known, told)
    tally = importing.tally
    found = [file for one in paths for file in files_under(Path(one))]
    total, done = sum(file.size for file in found), 0
    for file in found:
        name = _readable(file.path)
        report("import", done, total, name)
        tally.files += 1
        if file.problem is not None:
            row = Row(1, b"", file.problem)
            importing.chunk(name, [row])
        else:
            for inner, found_rows in _files_of(file.path, max_line):
                for chunk in chunks(joined(found_rows, format, max_line)):
                    importing.chunk(f"{name}!{inner}" if inner else name, chunk)
        done += file.size
    report("import", total, total, "committing")
    return tally


def committed(home: Home, project: str, before: Stored, tally: Tally) -> ImportReport:
    """Commits what was taken, and says what came of it.

    Args:
        before: what the store held when taking began.
    """
    waits = tally.fresh or Inbox(home).pending() or journal.files(home)
    took = commit(home).segments if waits else 0  # nothing does where all was known
    after = receipts.stored(home, project) if took or tally.fresh else before
    spans = max(0, after.spans - before.spans)
    return ImportReport(
        files=tally.files,
        traces=max(0, after.traces - before.traces),
        spans=spans,
        duplicates=max(0, tally.spans - spans),
        quarantined=tally.quarantined,
        unmapped_fields=dict(sorted(tally.unmapped.items())),
        formats=dict(sorted(tally.formats.items())),
        rejects=tuple(tally.rejects),
        refused=tally.refused,
        readable=sum(tally.formats.values()),
    )


def raw_row(home: Home, key: str) -> bytes:
    """The bytes that a trace came from, by its `raw`."""
    chunk, _, place = key.partition("#")
    data = RawStore(home).get(chunk)
    start, length = part(place, len(data))
    return data[start : start + length]


def _files_of(path: Path, max_line: int) -> Iterator[tuple[str, Iterator[Row]]]:
    """The rows of a file, or of each file in it."""
    if is_zip(path):
        yield from zip_files(path, max_line)
    else:
        yield "", rows(blocks(path), max_line)


def _readable(path: Path) -> str:
    """The path as text: bytes of a name that are no UTF-8 are written out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class _Import:
    """One import under way."""

    def __init__(
        self, home: Home, project: str, format: str, known: frozenset[str], told: Belonging
    ) -> None:
        self.home, self.project, self.format, self.known = home, project, format, known
        self.taking, self.told = Taking(home, project, format, told), told
        self.tally = Tally()

    def chunk(self, path: str, chunk: list[Row]) -> None:
        """Reads one chunk, unless its receipt says what it gave."""
        data = b"\n".join([row.data for row in chunk])
        problems = [(at, row.problem) for at, row in enumerate(chunk) if row.problem]
        key = digest_bytes(data)
        shape = (len(chunk), chunk[-1].number - chunk[0].number, problems)
        said = () if self.told == NOBODY else (self.told,)
        segment = "import-" + digest(self.project, self.format, READER, key, shape, *said)
        receipt = receipts.load(self.home, segment) if segment in self.known else None
        if receipt is None:
            with no_collection():
                receipt = self._read(segment, data, chunk, key)
        self.tally.add(path, chunk[0].number, receipt)

    def _read(self, segment: str, data: bytes, chunk: list[Row], key: str) -> Receipt:
        self.tally.fresh += 1
        read, kept = self.taking.take(segment, chunk, data, key)
        receipt = Receipt(
            traces=read.traces,
            spans=read.spans,
            feedback=read.feedback,
            formats=dict(read.formats),
            unmapped=dict(read.unmapped),
            refused=read.refused,
            raw=key,
            rejects=tuple(
                Reject(path="", line=line, field=error.field, reason=error.reason, kept=kept)
                for line, error, _ in read.rejects
            ),
        )
        if read.some:
            receipts.save(self.home, segment, receipt)
        return receipt

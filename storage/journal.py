"""The journal: how the gateway keeps every answered request without waiting for the disk.

A line of bytes (`storage.envelope.encode`) enters; it is in the operating system before `append`
returns, so a kill -9 of the process loses nothing, and on the disk within 50 ms. The committer
reads the files where they lie, whole lines from the offset that its ledger has, in the transaction
that moves that offset: nothing is read twice. A file belongs to the process that locks it; one that
is locked by nobody gets no more lines, and goes once all of it is committed.
"""

import fcntl
import os
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from flywheel import durable
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import new_ulid
from storage.locks import lock

_SUFFIX = ".journal"
_GROUP_S = 0.05
"""The longest that a line waits for its fdatasync."""


class Journal:
    """Safe between threads. A forked child gets a file of its own with its first line."""

    def __init__(
        self,
        home: Home,
        *,
        strict: bool = False,
        rotate_bytes: int = 64 << 20,
        rotate_s: float = 3600.0,
    ) -> None:
        """
        Args:
            strict: wait for the disk in every `append`.
            rotate_bytes, rotate_s: after how much a new file is begun.
        """
        self._home, self._strict = home, strict
        self._rotate_bytes, self._rotate_s = rotate_bytes, rotate_s
        self._closed = False
        self._file: _OpenFile | None = None
        self._failure: OSError | None = None
        self._thread: threading.Thread | None = None
        self._begin()

    def append(self, record: bytes) -> None:
        """Adds one record's line.

        Raises:
            Full: no space left; nothing was written.
            OSError: the disk failed, now or when it last synced.
        """
        line = frame(record)
        if self._pid != os.getpid():
            self._leave_parents()
        with self._guard:
            if self._closed:
                raise ValueError("this journal is closed")
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            file = self._current()
            file.write(line)
            if self._strict:
                os.fdatasync(file.handle)
        self._dirty.set()

    def close(self) -> None:
        """Syncs what was written and leaves the file to the committer."""
        if self._pid != os.getpid():
            self._leave_parents()
        with self._guard:
            self._closed = True
            if self._file is not None:
                self._file.close()
            self._file = None
        self._dirty.set()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._dirty = threading.Event()
        self._file, self._failure, self._thread = None, None, None

    def _leave_parents(self) -> None:
        inherited = self._file
        self._begin()
        if inherited is not None:
            os.close(inherited.handle)

    def _current(self) -> "_OpenFile":
        file = self._file
        if file is not None and (
            file.size >= self._rotate_bytes or time.monotonic() - file.since >= self._rotate_s
        ):
            file.close()
            self._file = None
        if self._file is None:
            self._file = _OpenFile(self._home.journal)
        if self._thread is None and not self._strict:
            self._thread = threading.Thread(target=self._sync, daemon=True, name="journal sync")
            self._thread.start()
        return self._file

    def _sync(self) -> None:
        while not self._closed:
            self._dirty.wait()
            time.sleep(_GROUP_S / 2)
            self._dirty.clear()
            with self._guard:
                handle = os.dup(self._file.handle) if self._file else None
            if handle is None:
                continue
            try:
                os.fdatasync(handle)
            except OSError as error:
                self._failure = error
            finally:
                os.close(handle)


class _OpenFile:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / (new_ulid() + _SUFFIX)
        hidden = folder / f".{self.path.name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        with durable.no_space(self.path):
            self.handle = os.open(hidden, flags, 0o644)
            # Locked before it is visible: the committer takes an unlocked file for abandoned.
            lock(self.handle)
            os.rename(hidden, self.path)
            durable.sync_folder(folder)
        self.size, self.since = 0, time.monotonic()

    def write(self, line: bytes) -> None:
        try:
            with durable.no_space(self.path):
                rest = memoryview(line)
                while rest:
                    rest = rest[os.write(self.handle, rest) :]
        except BaseException:
            os.ftruncate(self.handle, self.size)
            raise
        self.size += len(line)
        failpoint("store.journal_written")

    def close(self) -> None:
        os.fdatasync(self.handle)
        fcntl.flock(self.handle, fcntl.LOCK_UN)
        os.close(self.handle)


@dataclass(frozen=True)
class Tail:
    """What a journal file holds from an offset on."""

    lines: list[tuple[int, bytes]]
    """(offset, record)."""
    end: int
    """Offset after the last line that was looked at."""
    torn: list[tuple[int, bytes]]
    """(offset, bytes) of what is no whole line."""


def frame(record: bytes) -> bytes:
    """`record` with its checksum, as one line. JSON has line breaks only between its tokens."""
    record = record.replace(b"\n", b" ")
    return b"%08x %b\n" % (zlib.crc32(record), record)


def files(home: Home) -> list[Path]:
    if not home.journal.is_dir():
        return []
    return sorted(path for path in home.journal.glob(f"*{_SUFFIX}") if path.name[0] != ".")


def name_of(path: Path) -> str:
    """A journal's name in the ledger."""
    return f"journal:{path.name.removesuffix(_SUFFIX)}"


def abandoned(path: Path) -> bool:
    """Whether no process will write to it any more."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return lock(handle)
    finally:
        os.close(handle)


def read(path: Path, offset: int, *, last: bool) -> Tail:
    """The lines from `offset` on.

    Args:
        last: whether nothing will be added, so that a cut last line is lost; else it is left for
            the next time.
    """
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data if last else data[: data.rfind(b"\n") + 1]
    lines: list[tuple[int, bytes]] = []
    torn: list[tuple[int, bytes]] = []
    place = offset
    for line in whole.split(b"\n"):
        if line[:9] == b"%08x " % zlib.crc32(record := line[9:]):
            lines.append((place, record))
        elif line:
            torn.append((place, line))
        place += len(line) + 1
    return Tail(lines, offset + len(whole), torn)

"""The journal: how the gateway keeps every answered request without waiting for the disk.

A line of bytes (`storage.envelope.encode`) enters; it is in the operating system before `append`
returns, so a kill -9 of the process loses nothing, and on the disk within 50 ms (`synced` says
when: those who wait share one fdatasync, which runs in a thread). The committer reads the files
where they lie, whole lines from the offset that its ledger has, in the transaction that moves that
offset: nothing is read twice. A file belongs to the process that locks it; one that is locked by
nobody gets no more lines, and goes once all of it is committed.
"""

import contextlib
import os
import threading
import time
import zlib
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path

from flywheel.home import Home
from storage.journal_file import SUFFIX, OpenFile
from storage.locks import lock

_GROUP_S = 0.025
"""How long a line waits for others before its fdatasync, where nobody waits for it: half of what a
power cut may cost, the other half is the disk's."""


class Journal:
    """Safe between threads. A forked child gets a file of its own with its first line."""

    _file: OpenFile | None
    _left: list[OpenFile]
    """Full ones, whose last lines are to be synced."""
    _thread: threading.Thread | None
    _waiters: "list[Future[None]]"
    _failure: OSError | None
    """Of the last sync, not yet said."""
    _dirty_since: float | None
    _syncing: float | None
    """Since when the oldest of what is being synced waits."""

    def __init__(
        self, home: Home, *, rotate_bytes: int = 64 << 20, rotate_s: float = 3600.0
    ) -> None:
        """`rotate_bytes`, `rotate_s`: after how much a new file is begun."""
        self._home = home
        self._rotate_bytes, self._rotate_s = rotate_bytes, rotate_s
        self._closed = False
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
        with self._changed:
            if self._closed:
                raise ValueError("this journal is closed")
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            self._current().write(line)
            if self._dirty_since is None:
                self._dirty_since = time.monotonic()
                self._changed.notify()

    def synced(self) -> "Future[None]":
        """Done once all that was appended before is on the disk; its error is the disk's."""
        waiter: Future[None] = Future()
        with self._changed:
            if self._dirty_since is None and self._syncing is None:
                _settle(waiter, self._failure)
            else:
                self._waiters.append(waiter)
                self._changed.notify()
        return waiter

    @property
    def behind_s(self) -> float:
        """How long the oldest line waits for the disk."""
        since = self._syncing or self._dirty_since
        return 0.0 if since is None else time.monotonic() - since

    def close(self) -> None:
        """Syncs what was written and leaves the file to the committer."""
        if self._pid != os.getpid():
            self._leave_parents()
        with self._changed:
            self._closed = True
            if self._file is not None:
                self._left.append(self._file)
            self._file = None
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._file, self._thread, self._failure = None, None, None
        self._left, self._waiters = [], []
        self._dirty_since = self._syncing = None

    def _leave_parents(self) -> None:
        inherited = [*self._left, *([self._file] if self._file is not None else [])]
        self._begin()
        for file in inherited:
            os.close(file.handle)

    def _current(self) -> OpenFile:
        file = self._file
        if file is not None and (
            file.size >= self._rotate_bytes or time.monotonic() - file.since >= self._rotate_s
        ):
            self._left.append(file)
            self._file = None
        if self._file is None:
            self._file = OpenFile(self._home.journal)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_synced, daemon=True, name="journal")
            self._thread.start()
        return self._file

    def _keep_synced(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._dirty_since is not None or self._waiters or self._closed
                )
                # Whoever waits for the disk is not made to wait for others too.
                self._changed.wait_for(lambda: self._waiters or self._closed, _GROUP_S)
                self._syncing, self._dirty_since = self._dirty_since, None
                waiters, self._waiters = self._waiters, []
                left, self._left = self._left, []
                file, closed = self._file, self._closed
            failure = _sync(left, file)
            with self._changed:
                self._syncing = None
                if failure is not None:
                    # What a failed sync did not write it will not write later: a new file.
                    self._failure, self._left = failure, [*self._left, *([file] if file else [])]
                    self._file = None if self._file is file else self._file
            for waiter in waiters:
                _settle(waiter, failure)
            if closed:
                return


def _settle(waiter: "Future[None]", failure: OSError | None) -> None:
    with contextlib.suppress(InvalidStateError):  # it was given up
        if failure is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(failure)


def _sync(left: list[OpenFile], file: OpenFile | None) -> OSError | None:
    failure: OSError | None = None
    for one in left:
        try:
            one.close()
        except OSError as error:
            failure = error
    try:
        if file is not None:
            file.sync()
    except OSError as error:
        failure = error
    return failure


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
    return sorted(path for path in home.journal.glob(f"*{SUFFIX}") if path.name[0] != ".")


def name_of(path: Path) -> str:
    """A journal's name in the ledger."""
    return f"journal:{path.name.removesuffix(SUFFIX)}"


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

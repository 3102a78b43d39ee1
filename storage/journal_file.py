"""One file of the journal while its writer has it: locked, appended to line by line, synced.

Invariant: it holds whole lines only; a line that could not be written is taken back. Unlocked, it
is the committer's.
"""

import fcntl
import os
import time
from pathlib import Path

from flywheel import durable
from flywheel.failpoints import failpoint
from flywheel.ids import new_ulid
from storage.locks import lock

SUFFIX = ".journal"


class OpenFile:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / (new_ulid() + SUFFIX)
        hidden = folder / f".{self.path.name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        with durable.no_space(self.path):
            self.handle = os.open(hidden, flags, 0o644)
            # Locked before it is visible: the committer takes an unlocked file for abandoned.
            lock(self.handle)
            os.rename(hidden, self.path)
        self.size, self.since = 0, time.monotonic()
        self._named = False
        """Whether its name is on the disk too."""

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

    def sync(self) -> None:
        if not self._named:
            durable.sync_folder(self.path.parent)
            self._named = True
        os.fdatasync(self.handle)

    def close(self) -> None:
        try:
            self.sync()
        finally:
            fcntl.flock(self.handle, fcntl.LOCK_UN)
            os.close(self.handle)

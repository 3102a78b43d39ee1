"""What answers left for requests that go on from them: a bounded memory that all gateway processes
of a home share. It is a convenience of the Responses protocol and no record: the traces are that.

The oldest go first, by age, number and size. A power cut may take the last ones; a kill does not.
"""

import sqlite3
import threading
import time
from pathlib import Path

from flywheel.errors import FlywheelError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS remembered (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, at INTEGER NOT NULL, size INTEGER NOT NULL,
    said BLOB NOT NULL, left BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS remembered_at ON remembered (at);
"""
_FORGET = """
DELETE FROM remembered WHERE id IN (
    SELECT id FROM (
        SELECT id, at, row_number() OVER newest AS place, sum(size) OVER newest AS total
        FROM remembered WINDOW newest AS (ORDER BY at DESC, id DESC)
    ) WHERE place > ? OR total > ? OR at < ?
)
"""
_BUSY_S = 2.0
_EVERY = 64
"""Answers between two looks at what may be forgotten."""


class Remembered:
    def __init__(
        self, path: Path, *, rows: int = 20_000, size: int = 2**29, seconds: float = 30 * 86_400
    ) -> None:
        """
        Args:
            size: bytes of all of them; one alone may have an eighth of it.
            seconds: after which one is forgotten.
        """
        self._path, self._rows, self._size, self._seconds = path, rows, size, seconds
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._added = self._bytes = 0

    def add(self, id: str, owner: str, said: bytes, left: bytes) -> None:
        """
        Args:
            owner: who alone may have it again.
            said: the answer as its client got it.
            left: what goes on from it needs.

        Raises:
            FlywheelError: it could not be written, or is too large.
        """
        size = len(said) + len(left)
        if size > self._size // 8:
            raise FlywheelError(f"the response {id} is too large to be remembered")
        with self._lock:
            try:
                row = (id, owner, time.time_ns(), size, said, left)
                self._file().execute("INSERT OR REPLACE INTO remembered VALUES (?,?,?,?,?,?)", row)
                self._added, self._bytes = self._added + 1, self._bytes + size
                if self._added % _EVERY == 1 or self._bytes > self._size // 8:
                    self._forget()
            except sqlite3.Error as error:
                raise FlywheelError(f"{self._path} cannot be written: {error}") from error

    def find(self, id: str, owner: str) -> tuple[bytes, bytes] | None:
        """What was said and what was left; None = it is not known, or somebody else's.

        Raises:
            FlywheelError: the file cannot be read.
        """
        oldest = time.time_ns() - int(self._seconds * 1e9)
        with self._lock:
            try:
                found = self._file().execute(
                    "SELECT said, left FROM remembered WHERE id = ? AND owner = ? AND at >= ?",
                    (id, owner, oldest),
                )
                row: tuple[bytes, bytes] | None = found.fetchone()
                return row
            except sqlite3.Error as error:
                raise FlywheelError(f"{self._path} cannot be read: {error}") from error

    def drop(self, id: str, owner: str) -> bool:
        """Whether it was there.

        Raises:
            FlywheelError: the file cannot be written.
        """
        with self._lock:
            try:
                done = self._file().execute(
                    "DELETE FROM remembered WHERE id = ? AND owner = ?", (id, owner)
                )
                return done.rowcount > 0
            except sqlite3.Error as error:
                raise FlywheelError(f"{self._path} cannot be written: {error}") from error

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _file(self) -> sqlite3.Connection:
        if self._opened is None:
            # Requests come from several threads; the lock lets one in at a time.
            opened = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            opened.execute("PRAGMA journal_mode=WAL")
            opened.execute("PRAGMA synchronous=NORMAL")
            opened.execute("PRAGMA secure_delete=ON")
            opened.executescript(_SCHEMA)
            self._path.chmod(0o600)
            self._opened = opened
        return self._opened

    def _forget(self) -> None:
        self._bytes = 0
        oldest = time.time_ns() - int(self._seconds * 1e9)
        self._file().execute(_FORGET, (self._rows, self._size, oldest))

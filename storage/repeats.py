"""What was said lately, known to all processes of a home: enough to tell a repetition from a change
of mind.

One SQLite file, bounded. It is a memory and no record: a process that is killed loses nothing of
it, a power cut may, and then a repetition becomes a second record of the same content, which
supersedes the first and so still counts once. One that is damaged is begun anew.
"""

import contextlib
import sqlite3
from collections.abc import Iterator

import msgspec

from flywheel.errors import Busy
from flywheel.home import Home
from flywheel.ids import digest
from flywheel.records import Feedback

_WAIT_S = 2.0
_PRUNE_EVERY = 1000
_TABLES = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS said(place INTEGER PRIMARY KEY, key TEXT UNIQUE, body BLOB);
"""
_decoder = msgspec.json.Decoder(Feedback)


class Repeats:
    def __init__(self, home: Home, size: int = 200_000) -> None:
        """
        Args:
            size: entries that are kept: one for each thing said, one for each idempotency key.
        """
        self._path, self._size = home.repeats, size
        self._database: sqlite3.Connection | None = None
        self._puts = 0

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is looked up and put in this block happens at one moment, to other processes too.

        Raises:
            Busy: another process holds the file for long.
        """
        try:
            database = self._opened()
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise Busy(f"{self._path}: {error}") from error
        except sqlite3.DatabaseError:
            database = self._anew()
            database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            database.rollback()
            raise
        database.commit()

    def last(self, feedback: Feedback) -> Feedback | None:
        """What the same person said last of the same thing."""
        return self._get(_about(feedback))

    def under(self, project: str, key: str) -> Feedback | None:
        """What came with this idempotency key."""
        return self._get(_keyed(project, key))

    def put(self, feedback: Feedback, key: str | None) -> None:
        body = msgspec.json.encode(feedback)
        last = self.last(feedback)
        if last is None or last.at <= feedback.at:
            self._put(_about(feedback), body)
        if key is not None:
            self._put(_keyed(feedback.project, key), body)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _get(self, key: str) -> Feedback | None:
        rows = self._opened().execute("SELECT body FROM said WHERE key = ?", [key]).fetchall()
        return _decoder.decode(rows[0][0]) if rows else None

    def _put(self, key: str, body: bytes) -> None:
        database = self._opened()
        database.execute("INSERT OR REPLACE INTO said(key, body) VALUES (?, ?)", [key, body])
        self._puts += 1
        if self._puts % min(_PRUNE_EVERY, self._size) == 0:
            database.execute(
                "DELETE FROM said WHERE place <= (SELECT max(place) FROM said) - ?", [self._size]
            )

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                self._path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._database.executescript(_TABLES)
        return self._database

    def _anew(self) -> sqlite3.Connection:
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return self._opened()


def _about(feedback: Feedback) -> str:
    """What a later word of the same person replaces."""
    return digest(
        feedback.project, feedback.target_kind, feedback.target, feedback.name, feedback.by
    )


def _keyed(project: str, key: str) -> str:
    return digest("idempotency-key", project, key)

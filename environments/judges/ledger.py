"""What a judge said and spent: one SQLite file in the home, shared by all processes.

Enter: verdicts under the key of what was asked; calls, reserved before they are made and settled
after. Leave: verdicts again, and whether one more call fits the day's budget. Invariants: what is
settled and reserved together never passes the budget, whatever runs in parallel or is killed; a
process that died holds a reservation no longer than it said; unknown cost counts as what was
reserved for it. SQL stands here and not in `storage`, which environments do not import.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from flywheel.durable import is_full
from flywheel.errors import Busy, CorruptFile, Full
from flywheel.ids import new_ulid

KEEP = 200_000
"""Verdicts kept; the oldest go."""
_PRUNE_EVERY = 256
_WAIT_S = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS holds (
    id TEXT PRIMARY KEY, scope TEXT NOT NULL, day TEXT NOT NULL, until REAL NOT NULL,
    usd REAL NOT NULL, tokens INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS days (
    scope TEXT NOT NULL, day TEXT NOT NULL, calls INTEGER NOT NULL, tokens INTEGER NOT NULL,
    usd REAL NOT NULL, unknown INTEGER NOT NULL, lost INTEGER NOT NULL, PRIMARY KEY (scope, day)
);
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value REAL NOT NULL);
"""
_ADD = """INSERT INTO days VALUES (:scope, :day, :calls, :tokens, :usd, :unknown, :lost)
    ON CONFLICT (scope, day) DO UPDATE SET calls = calls + excluded.calls,
    tokens = tokens + excluded.tokens, usd = usd + excluded.usd,
    unknown = unknown + excluded.unknown, lost = lost + excluded.lost"""


class Bounds(NamedTuple):
    """Of one day; None = not bounded so."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None


class Spent(NamedTuple):
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0
    """Of a call whose cost is not known: what was reserved for it."""
    unknown: int = 0
    """Calls whose cost or tokens are not known."""
    lost: int = 0
    """Calls whose process died before they were settled; in `calls` alone."""
    held: int = 0
    """Calls under way; not in `calls`."""


class Hold(NamedTuple):
    """A reservation."""

    id: str
    scope: str
    day: str
    usd: float
    tokens: int


@dataclass(frozen=True)
class Ledger:
    path: Path
    keep: int = KEEP
    clock: Callable[[], float] = time.time

    # --- verdicts ----------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        with self._open() as database:
            row = database.execute("SELECT body FROM verdicts WHERE key = ?", [key]).fetchone()
        return row[0] if row else None

    def put(self, key: str, body: bytes) -> None:
        with self._writing() as database:
            at = database.execute(
                "INSERT OR REPLACE INTO verdicts (key, body) VALUES (?, ?)", [key, body]
            ).lastrowid
            if at and (at % _PRUNE_EVERY == 0 or self.keep < _PRUNE_EVERY):
                database.execute("DELETE FROM verdicts WHERE rowid <= ?", [at - self.keep])

    # --- the budget --------------------------------------------------------------------------

    def reserve(
        self, scope: str, bounds: Bounds, usd: float, tokens: int, lasts_s: float
    ) -> Hold | str:
        """Room for one call that costs at most so much, or what there is no room in."""
        now = self.clock()
        hold = Hold(new_ulid(), scope, _day(now), usd, tokens)
        with self._writing() as database:
            _expire(database, now)
            spent = _spent(database, scope, hold.day)
            held = _held(database, scope, hold.day)
            if bounds.calls is not None and spent.calls + held.calls + 1 > bounds.calls:
                return f"{bounds.calls} calls a day"
            if bounds.tokens is not None and spent.tokens + held.tokens + tokens > bounds.tokens:
                return f"{bounds.tokens} tokens a day"
            if bounds.usd is not None and spent.usd + held.usd + usd > bounds.usd:
                return f"{bounds.usd:g} dollars a day"
            database.execute(
                "INSERT INTO holds VALUES (?, ?, ?, ?, ?, ?)",
                [hold.id, scope, hold.day, now + lasts_s, usd, tokens],
            )
        return hold

    def settle(self, hold: Hold, usd: float | None, tokens: int | None) -> None:
        """What the call really took; None = not known: it counts as what was reserved."""
        unknown = usd is None or tokens is None
        row = {
            "scope": hold.scope, "day": hold.day, "calls": 1,
            "tokens": hold.tokens if tokens is None else tokens,
            "usd": hold.usd if usd is None else usd, "unknown": int(unknown), "lost": 0,
        }  # fmt: skip
        with self._writing() as database:
            gone = database.execute("DELETE FROM holds WHERE id = ?", [hold.id]).rowcount
            if not gone:  # it had expired, and was counted as lost
                row |= {"calls": 0, "lost": -1, "unknown": int(unknown) - 1}
            database.execute(_ADD, row)

    def release(self, hold: Hold) -> None:
        """Of a call that was never made, or never answered for money."""
        with self._writing() as database:
            database.execute("DELETE FROM holds WHERE id = ?", [hold.id])

    def spent(self, scope: str) -> Spent:
        """Today."""
        now = self.clock()
        with self._writing() as database:
            _expire(database, now)
            found = _spent(database, scope, _day(now))
            return found._replace(held=_held(database, scope, _day(now)).calls)

    # --- what processes tell one another --------------------------------------------------------

    def facts(self, *keys: str) -> list[float]:
        """The values noted under `keys`; 0 = nothing was noted."""
        with self._open() as database:
            rows = database.execute(
                f"SELECT key, value FROM facts WHERE key IN ({', '.join('?' * len(keys))})", keys
            ).fetchall()
        found = dict(rows)
        return [found.get(key, 0.0) for key in keys]

    def note(self, key: str, value: float) -> None:
        with self._writing() as database:
            database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", [key, value])

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one question: none is kept, since processes fork."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            database = sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)
            try:
                database.execute("PRAGMA synchronous = NORMAL")
                if not database.execute("PRAGMA user_version").fetchone()[0]:
                    database.execute("PRAGMA journal_mode = WAL")
                    database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = 1;"
                                           "COMMIT")  # fmt: skip
                yield database
            finally:
                database.close()
        except sqlite3.Error as error:
            raise _told(self.path, error) from error


def _told(path: Path, error: sqlite3.Error) -> Exception:
    if is_full(error):
        return Full(f"no space left for {path}: free some and run again")
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return Busy(f"{path} is held by another process: run again")
    return CorruptFile(f"{path} cannot be used ({error}): move it away, and it is made anew")


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _expire(database: sqlite3.Connection, now: float) -> None:
    """Ends reservations of processes that died: their calls may have been made."""
    rows = database.execute("DELETE FROM holds WHERE until < ? RETURNING scope, day", [now])
    for scope, day in rows.fetchall():
        lost: dict[str, Any] = {"scope": scope, "day": day, "calls": 1, "lost": 1}
        database.execute(_ADD, lost | {"tokens": 0, "usd": 0.0, "unknown": 1})


def _spent(database: sqlite3.Connection, scope: str, day: str) -> Spent:
    row = database.execute(
        "SELECT calls, tokens, usd, unknown, lost FROM days WHERE scope = ? AND day = ?",
        [scope, day],
    ).fetchone()
    return Spent(*row) if row else Spent()


def _held(database: sqlite3.Connection, scope: str, day: str) -> Spent:
    row = database.execute(
        "SELECT count(*), total(tokens), total(usd) FROM holds WHERE scope = ? AND day = ?",
        [scope, day],
    ).fetchone()
    return Spent(row[0], int(row[1]), row[2])

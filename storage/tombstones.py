"""What was erased does not come back: hashes by which a later delivery of it is known and refused.

Enter traces on their way into the store; leave those that may go on. A hash is keyed by a secret of
the home, so that the table tells nobody who was erased. A trace that was erased never comes back;
of a person, tenant or conversation what began after the erasure is new data and is let in.
"""

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from flywheel import durable
from flywheel.home import Home
from flywheel.records import Feedback, Grade, Trace
from storage.database import reading
from storage.rows import insert

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FOREVER = (1 << 63) - 1
_KINDS = ("user", "tenant", "conversation")


class Tombstone(NamedTuple):
    hash: bytes
    erased: int
    """Nanoseconds; what began later is another matter."""


class Tombstones:
    """Those of a home as they stand, to ask of any number of traces."""

    def __init__(self, key: bytes, erased: dict[bytes, int]) -> None:
        self._key, self._erased = key, erased
        self._known: dict[tuple[str, str, str], int] = {}

    def __bool__(self) -> bool:
        return bool(self._erased)

    def refuses(self, record: object) -> bool:
        """Whether it is, or is about, what was erased; or is of somebody whose data was, and began
        before that."""
        if isinstance(record, Trace):
            return self._trace(record)
        if isinstance(record, Grade):
            return self._forever("trace", record.trace_id)
        if isinstance(record, Feedback):
            talk = record.target if record.target_kind == "conversation" else None
            until = self._latest(record.project, (record.by, None, talk))
            return record.at <= until or self._forever("trace", record.target)
        return False

    def _trace(self, trace: Trace) -> bool:
        if self._forever("trace", trace.id):
            return True
        until = self._latest(trace.project, (trace.user, trace.tenant, trace.conversation))
        if until < 0:
            return False
        started = min((span.start for span in trace.spans if span.start is not None), default=None)
        return started is None or started <= until

    def _forever(self, kind: str, value: str) -> bool:
        return hashed(self._key, kind, "", value) in self._erased

    def _latest(self, project: str, values: tuple[str | None, str | None, str | None]) -> int:
        pairs = zip(_KINDS, values, strict=True)
        return max(self._until(kind, project, value) for kind, value in pairs)

    def _until(self, kind: str, project: str, value: str | None) -> int:
        if value is None:
            return -1
        known = self._known.get((kind, project, value))
        if known is None:
            hashes = (hashed(self._key, kind, one, value) for one in ("", project))
            known = max(self._erased.get(one, -1) for one in hashes)
            self._known[kind, project, value] = known
        return known


def hashed(key: bytes, kind: str, project: str, value: str) -> bytes:
    """`project`: within which it holds; "" = in all."""
    said = f"{kind}\0{project}\0{value}".encode("utf-8", "surrogatepass")
    return blake2b(said, digest_size=16, key=key).digest()


def secret(home: Home) -> bytes:
    """The home's own."""
    return durable.first(home.erasure_key, os.urandom(32))


def tombstones(home: Home) -> Tombstones:
    """As they stand; cheap where nothing was erased since it was asked last."""
    try:
        stamp = home.erasure_key.stat().st_mtime_ns
    except FileNotFoundError:
        return Tombstones(b"", {})
    return _read(home, stamp)


def changed(home: Home) -> None:
    """To be told after each erasure: who asked before asks again."""
    os.utime(home.erasure_key)


@lru_cache(maxsize=4)
def _read(home: Home, stamp: int) -> Tombstones:
    with reading(home) as database:
        return standing(home, database) if database is not None else Tombstones(b"", {})


def standing(home: Home, database: "DuckDBPyConnection") -> Tombstones:
    """The same inside a transaction that is open."""
    if not home.erasure_key.exists():
        return Tombstones(b"", {})
    rows = database.execute("SELECT hash, max(erased) FROM tombstones GROUP BY hash").fetchall()
    return Tombstones(secret(home), dict(rows))


def put(database: "DuckDBPyConnection", stones: Iterable[Tombstone]) -> None:
    insert(database, "tombstones", {"hash": "BLOB", "erased": "BIGINT"}, list(stones))


def of_traces(key: bytes, ids: Iterable[str]) -> Iterator[Tombstone]:
    for one in ids:
        yield Tombstone(hashed(key, "trace", "", one), FOREVER)

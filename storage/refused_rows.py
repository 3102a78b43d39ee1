"""Rows of what was erased, in a chunk that is taken in again: they go before anything is written.

Enter a chunk as it was read, and its bytes; leave it without those records, and the bytes with
blanks where their rows stood, so that all other places stay. Invariant: nothing of a refused row is
kept, neither its bytes nor what was large in it.
"""

import re

import msgspec

from flywheel.ids import digest_bytes
from flywheel.records import Feedback, Trace
from storage.chunk import ChunkRead
from storage.envelope import encode
from storage.raw import RawStore, part
from storage.tombstones import Tombstones

_DIGEST = re.compile(rb'"digest":"([0-9a-f]{32})"')


class Keeping:
    """Puts what is large in the raw store, and knows what it put there first."""

    def __init__(self, store: RawStore) -> None:
        self._store = store
        self._new: set[str] = set()

    def put(self, data: bytes) -> str:
        key = digest_bytes(data)
        if not self._store.has(key):
            self._new.add(key)
        return self._store.put(data)

    def without_erased(self, read: ChunkRead, data: bytes, key: str, stones: Tombstones) -> bytes:
        """Takes refused records out of `read`; returns the bytes that may be kept."""
        refused = [one for one in read.records if stones.refuses(one)]
        if not refused:
            return data
        read.refused = len(refused)
        read.spans -= sum(len(one.spans) for one in refused if isinstance(one, Trace))
        gone = set(map(id, refused))
        staying = [one for one in read.records if id(one) not in gone]
        made = bytearray(data)
        for one in refused:
            if isinstance(one, Trace) and one.raw:
                start, length = part(one.raw.partition("#")[2], len(data))
                made[start : start + length] = b" " * length
        new = digest_bytes(bytes(made))
        read.records[:] = [_renamed(one, key, new) for one in staying]
        read.rejects[:] = [
            (line, error, new + held[len(key) :] if isinstance(held, str) else held)
            for line, error, held in read.rejects
        ]
        named = {one for record in staying for one in _DIGEST.findall(encode(record))}
        for record in refused:
            for one in _DIGEST.findall(encode(record)):
                if one not in named and one.decode() in self._new:
                    self._store.drop(one.decode())
        return bytes(made)


def _renamed(record: Trace | Feedback, old: str, new: str) -> Trace | Feedback:
    if isinstance(record, Trace) and record.raw and record.raw.startswith(old):
        return msgspec.structs.replace(record, raw=new + record.raw[len(old) :])
    return record

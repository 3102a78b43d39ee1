"""Which conversation a request goes on with, known by its messages: no caller has to name one.

A request that goes on repeats what was said, our answer in it. So each answer is remembered under a
hash of all that was said up to it; the longest beginning of a request that ends in an answer of
ours is what it goes on from. That makes an edit or another try at a later answer a branch of the
same trace. The same history can have come up twice ("hi", "hello"): then the one that nothing went
on from yet is taken.

Invariant: forgetting costs no more than that a conversation begins anew. The table is a file of
fixed size that all gateway processes read and write in place; a slot that was torn fails its
checksum and is empty; the oldest of eight gives way.
"""

import os
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_SLOT = struct.Struct("<16s40s40sQ")
"""Key, root, span, time."""
_SIZE, _WAYS = 128, 8
_TIMES = struct.Struct("<" + "96xQ24x" * _WAYS)
"""Of a bucket's slots; 0 = empty."""
_TAKEN = 120
"""Offset in a slot: whether something went on from it. Outside the checksum, which is before it."""


class Turn(NamedTuple):
    """An answer that was given."""

    root: str
    """Response id of the conversation's first answer."""
    span: str


class Turns:
    """The table of answers that were given."""

    def __init__(self, path: Path, slots: int = 1 << 17) -> None:
        self._path, self._buckets = path, slots // _WAYS
        self._handle: int | None = None

    def find(self, keys: Sequence[bytes]) -> Turn | None:
        """The answer under the first of `keys` that is known; it counts as gone on from.

        Raises:
            OSError: the disk failed.
        """
        for key in keys:
            place = self._place(key)
            bucket = os.pread(self._file(), _SIZE * _WAYS, place)
            if key not in bucket:
                continue
            found = []
            for offset, slot in _slots(bucket):
                if slot.startswith(key) and (read := _read(slot)) is not None:
                    found.append((not slot[_TAKEN], *read, offset))
            if found:
                _, _, turn, offset = max(found)
                os.pwrite(self._file(), b"\1", place + offset + _TAKEN)
                return turn
        return None

    def add(self, key: bytes, root: str, span: str) -> None:
        """
        Raises:
            OSError: the disk failed.
        """
        names = root.encode(), span.encode()
        if max(map(len, names)) > 40:
            return
        now = time.time_ns()
        said = _SLOT.pack(key, *names, now)
        slot = said + zlib.crc32(said).to_bytes(4)
        place = self._place(key)
        bucket = os.pread(self._file(), _SIZE * _WAYS, place).ljust(_SIZE * _WAYS, b"\0")
        # What a torn slot says of its time may be anything; one to come is none.
        times = [when if when <= now else 0 for when in _TIMES.unpack(bucket)]
        oldest = times.index(min(times)) * _SIZE
        os.pwrite(self._file(), slot.ljust(_SIZE, b"\0"), place + oldest)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _file(self) -> int:
        if self._handle is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._handle

    def _place(self, key: bytes) -> int:
        return int.from_bytes(key[:8]) % self._buckets * _SIZE * _WAYS


def _slots(bucket: bytes) -> list[tuple[int, bytes]]:
    return [(at, bucket[at : at + _SIZE]) for at in range(0, len(bucket), _SIZE)]


def _read(slot: bytes) -> tuple[int, Turn] | None:
    """When it was written, and what it says; None = it is torn."""
    said = slot[: _SLOT.size]
    if zlib.crc32(said) != int.from_bytes(slot[_SLOT.size : _SLOT.size + 4]):
        return None
    _, root, span, when = _SLOT.unpack(said)
    return when, Turn(root.rstrip(b"\0").decode(), span.rstrip(b"\0").decode())

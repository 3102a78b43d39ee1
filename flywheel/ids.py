"""Ids: content hashes (the same content has the same id anywhere) and ULIDs (sortable by time).

No time and no ULID ever enters a content hash.
"""

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import msgspec

_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [one + other for one in _BASE32 for other in _BASE32]
"""Ten bits each."""
_SHIFTS = range(120, -1, -10)

_canonical = msgspec.json.Encoder(order="deterministic")


def canonical(value: Any) -> bytes:
    """JSON with sorted keys: equal values give equal bytes. Structs encode as their fields."""
    return _canonical.encode(value)


def digest(*values: Any) -> str:
    """32 hex digits (128 bits of blake2b) over the canonical JSON of `values`."""
    return hashlib.blake2b(canonical(values), digest_size=16).hexdigest()


def digest_bytes(data: bytes) -> str:
    """32 hex digits over raw bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def digest_file(path: Path) -> str:
    """The same over a file's bytes, a block at a time."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def seed_of(*values: Any) -> int:
    """A 31-bit seed derived from `values`, such as (run id, problem id, k)."""
    return int(digest(*values)[:8], 16) & 0x7FFFFFFF


def new_ulid() -> str:
    """26 characters, ordered by the millisecond they were made in: 48 bits of it, 80 of chance
    (https://github.com/ulid/spec)."""
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10))
    return "".join([_PAIRS[value >> shift & 1023] for shift in _SHIFTS])

"""The home's own secret: makes other names of ids, the same for the same, here and nowhere else."""

import os
from hashlib import blake2b
from pathlib import Path

from flywheel import durable


def secret(path: Path) -> bytes:
    return durable.first(path, os.urandom(32))


def other_name(name: str, key: bytes) -> str:
    """Of an id that says who somebody is: another, so that what has one id still has one."""
    return "redacted-" + blake2b(name.encode(), key=key, digest_size=12).hexdigest()

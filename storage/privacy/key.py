"""The home's own secret: makes other names of ids, the same for the same, here and nowhere else."""

import contextlib
import os
from hashlib import blake2b
from pathlib import Path

from flywheel import durable


def secret(path: Path) -> bytes:
    """Made once, by whichever process comes first."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_name(f".{path.name}.{os.getpid()}")
        durable.write(own, os.urandom(32))
        own.chmod(0o600)
        with contextlib.suppress(FileExistsError):
            os.link(own, path)
        own.unlink()
    return path.read_bytes()


def other_name(name: str, key: bytes) -> str:
    """Of an id that says who somebody is: another, so that what has one id still has one."""
    return "redacted-" + blake2b(name.encode(), key=key, digest_size=12).hexdigest()

"""File locks between processes, held for the time of a block and never longer than their process.

The kernel drops them when the holder dies, however it dies, so there is nothing to clean up.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

from flywheel.errors import Busy

T = TypeVar("T")

_POLL_S = 0.01


@contextlib.contextmanager
def held(path: Path, *, wait_s: float, busy: str, shared: bool = False) -> Iterator[None]:
    """Holds `path` as a lock.

    Args:
        wait_s: how long to wait for it.
        busy: what to tell the person when it did not come free.
        shared: whether others that ask shared may hold it too.

    Raises:
        Busy: it did not come free in time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        until = time.monotonic() + wait_s
        while not lock(handle, shared=shared):
            if time.monotonic() >= until:
                raise Busy(busy)
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


def lock(handle: int, *, shared: bool = False) -> bool:
    """Tries once to lock an open file; False = another holds it."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Held(Generic[T]):
    """What a file's lock guards, while it is held. A class, since some are entered at each
    request."""

    __slots__ = ("_guarded", "_handle")

    def __init__(self, handle: int, guarded: T) -> None:
        self._handle, self._guarded = handle, guarded

    def __enter__(self) -> T:
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        return self._guarded

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._handle, fcntl.LOCK_UN)

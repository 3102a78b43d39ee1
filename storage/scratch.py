"""Folders for the time of one piece of work, which leave nothing behind however it ends.

Enters the folder that they all lie in; leaves one of the caller's own, gone when its block ends.
Invariant: one that nobody holds the lock of is of a process that was killed, and the next that asks
removes it.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from flywheel.ids import new_ulid
from storage.locks import lock


@contextlib.contextmanager
def scratch(place: Path) -> Iterator[Path]:
    _clean(place)
    folder = place / new_ulid()
    folder.mkdir(parents=True)
    # Locked under another name first: under this one it is always somebody's.
    unlocked = folder / "not-yet"
    handle = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        lock(handle)
        unlocked.rename(folder / "in-use")
        yield folder
    finally:
        os.close(handle)
        shutil.rmtree(folder, ignore_errors=True)


def _clean(place: Path) -> None:
    """Removes the folders of processes that are gone."""
    for left in place.glob("*/in-use"):
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(left, os.O_RDWR | os.O_CLOEXEC)
            try:
                if lock(handle):
                    shutil.rmtree(left.parent, ignore_errors=True)
            finally:
                os.close(handle)

"""Durable files: what is visible under its name is whole, and stays after a power cut.

Write to a temporary name, fsync, rename, fsync the folder. A full disk becomes `Full`.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flywheel.errors import Full


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def no_space(what: Path) -> Iterator[None]:
    """Turns ENOSPC and EDQUOT into `Full`, naming what could not be written; libraries have errors
    of their own for them."""
    try:
        yield
    except Exception as error:
        if is_full(error) and not isinstance(error, Full):
            raise Full(f"no space left to write {what}: free some and run again") from error
        raise


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is that of a full disk. Databases say it in words."""
    while error is not None:
        words = str(error)
        if (
            isinstance(error, Full)
            or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
            or "No space left" in words
            or "database or disk is full" in words
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def write(path: Path, data: bytes) -> None:
    """Replaces `path` with `data`, atomically and durably.

    Raises:
        Full: the disk has no room; the old file, if any, is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with no_space(path), os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def first(path: Path, data: bytes) -> bytes:
    """What `path` holds for good, readable to its owner alone: `data`, or what another process
    that asked as well put there before.

    Raises:
        Full: the disk has no room.
    """
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    own = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    write(own, data)
    with contextlib.suppress(FileExistsError):
        os.link(own, path)
    own.unlink()
    sync_folder(path.parent)
    return path.read_bytes()


def publish(temporary: Path, final: Path) -> None:
    """Makes a whole folder visible under its final name: fsync files, rename, fsync above."""
    for path in sorted(temporary.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for folder in [temporary, *(path for path in temporary.rglob("*") if path.is_dir())]:
        sync_folder(folder)
    os.rename(temporary, final)
    sync_folder(final.parent)

"""Paths that stay below a folder, whatever links lie there; and removal of what resists.

Enter: a folder and a path relative to it. Leaves: an open folder and a name in it. Invariant: each
step is opened from the one before it, and none follows a link.
"""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from flywheel.errors import BadRecord

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Not blocking: a pipe among the files holds nobody up."""
MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EROFS)
"""What is wrong with the machine and not with the files."""
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def steps_of(path: str) -> list[str]:
    """
    Raises:
        BadRecord: it is absolute, or leads up.
    """
    pure = PurePosixPath(path)
    steps = [step for step in pure.parts if step != "."]
    if pure.is_absolute() or ".." in steps or not steps or "\0" in path:
        raise BadRecord("is no path in a workspace: give one relative to it", path=path)
    return steps


@contextlib.contextmanager
def parent_of(
    root: Path, path: str, *, make: bool = False, owner: int | None = None
) -> Iterator[tuple[int, str]]:
    """The folder that `path` lies in, open, and its name there. `make`: folders that are missing
    are made, for `owner`."""
    steps = steps_of(path)
    at = os.open(root, FOLDER)
    try:
        for step in steps[:-1]:
            if make:
                _make(at, step, owner)
            below = os.open(step, FOLDER, dir_fd=at)
            os.close(at)
            at = below
        yield at, steps[-1]
    finally:
        os.close(at)


def _make(parent: int, name: str, owner: int | None) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
    if owner is not None:
        os.chown(name, owner, owner, dir_fd=parent, follow_symlinks=False)


def remove(folder: Path) -> None:
    """Also what was made to be hard to remove: closed folders, thousands of them in each other."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*command, "--", folder], capture_output=True, check=False)
        if folder.exists():
            raise

"""Snapshots of a workspace: one plain tar file, made and unpacked without trust.

Enter: a folder that hostile programs wrote, or a tar file from anywhere. Leave: a tar file, or the
folder as it was. Invariant: only folders, files and links that stay inside; unpacking follows no
link, writes no more than the bound, and replaces the workspace whole or not at all.
"""

import os
import shutil
import stat
import tarfile
from pathlib import Path, PurePosixPath

from environments.runtimes.beneath import CREATE, FOLDER, MACHINE, READ, parent_of, remove, steps_of
from environments.runtimes.watchdog import DEEPEST, ENTRIES, size_of
from flywheel.errors import BadRecord

_INCOMING, _OUTGOING = "work.new", "work.old"
_HEADERS = 4096
"""Bytes that a tar file takes for an entry beside its content, at most."""


def pack(work: Path, archive: Path, bound: int) -> Path:
    """
    Raises:
        BadRecord: the workspace is larger than its bound, or not to be read.
    """
    if size_of(work) > bound:
        raise BadRecord(
            f"holds more than {bound} bytes or {ENTRIES} files, or more than {DEEPEST} folders in "
            "each other",
            path=str(work),
        )
    aside = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                _Packing(tar, bound).all(work)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(archive)
    except OSError as error:
        if error.errno in MACHINE:
            raise
        why = f"its program closed or changed it meanwhile: {error.strerror or error}"
        raise BadRecord(why, path=str(error.filename or work)) from error
    finally:
        aside.unlink(missing_ok=True)
    return archive


class _Packing:
    def __init__(self, tar: tarfile.TarFile, bound: int) -> None:
        self.tar, self.left, self.entries = tar, bound, 0

    def all(self, work: Path) -> None:
        root = os.open(work, FOLDER)
        try:
            self._folder(root, "")
        finally:
            os.close(root)

    def _folder(self, parent: int, prefix: str) -> None:
        if prefix.count("/") > DEEPEST:
            raise BadRecord(f"more than {DEEPEST} folders in each other", path=prefix[:80])
        for name in sorted(os.listdir(parent)):
            self.entries += 1
            if self.entries > ENTRIES:
                raise BadRecord(f"more than {ENTRIES} files", path=prefix or ".")
            self._one(parent, name, prefix + name)

    def _one(self, parent: int, name: str, path: str) -> None:
        said = os.stat(name, dir_fd=parent, follow_symlinks=False)
        entry = tarfile.TarInfo(path)
        entry.mode, entry.mtime = stat.S_IMODE(said.st_mode) & 0o777, int(said.st_mtime)
        if stat.S_ISDIR(said.st_mode):
            entry.type = tarfile.DIRTYPE
            self.tar.addfile(entry)
            below = os.open(name, FOLDER, dir_fd=parent)
            try:
                self._folder(below, path + "/")
            finally:
                os.close(below)
        elif stat.S_ISREG(said.st_mode):
            self._file(parent, name, entry)
        elif stat.S_ISLNK(said.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=parent)
            if _inside(path, entry.linkname):
                self.tar.addfile(entry)

    def _file(self, parent: int, name: str, entry: tarfile.TarInfo) -> None:
        fd = os.open(name, READ, dir_fd=parent)
        with os.fdopen(fd, "rb") as file:
            entry.size = os.fstat(fd).st_size
            self.left -= entry.size
            if self.left < 0:
                raise BadRecord("the workspace is larger than its limit", path=entry.name)
            self.tar.addfile(entry, file)


def unpack(archive: Path, work: Path, bound: int) -> None:
    """Replaces `work`.

    Raises:
        BadRecord: the archive holds what no snapshot holds, or more than the bound; nothing is
            changed then.
    """
    incoming, outgoing = work.with_name(_INCOMING), work.with_name(_OUTGOING)
    remove(incoming)
    incoming.mkdir(mode=0o700)
    try:
        if archive.stat().st_size > bound + ENTRIES * _HEADERS:
            raise BadRecord("is larger than a snapshot can be", path=str(archive))
        with tarfile.open(archive, "r:") as tar:
            _fill(tar, incoming, bound)
    except (tarfile.TarError, ValueError, EOFError, FileExistsError, NotADirectoryError) as error:
        remove(incoming)
        raise BadRecord(f"is no snapshot: {error}", path=str(archive)) from error
    except BaseException:
        remove(incoming)
        raise
    work.rename(outgoing)
    incoming.rename(work)
    remove(outgoing)


def settle(work: Path) -> None:
    """Ends a restore that a crash cut: between its last two steps the new one takes its place."""
    incoming, outgoing = work.with_name(_INCOMING), work.with_name(_OUTGOING)
    if outgoing.exists() and not work.exists():
        (incoming if incoming.exists() else outgoing).rename(work)
    remove(incoming)
    remove(outgoing)


def _fill(tar: tarfile.TarFile, folder: Path, bound: int) -> None:
    left = bound
    for number, member in enumerate(tar):
        left -= member.size if member.isfile() else 0
        if left < 0 or number >= ENTRIES:
            raise BadRecord("holds more than a workspace may", path=str(tar.name))
        if len(steps_of(member.name)) > DEEPEST + 1:
            raise BadRecord(f"more than {DEEPEST} folders in each other", path=member.name[:80])
        with parent_of(folder, member.name, make=True) as (parent, name):
            _place(tar, member, parent, name)


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
    if member.isdir():
        os.mkdir(name, 0o700, dir_fd=parent)
    elif member.issym() and _inside(member.name, member.linkname):
        os.symlink(member.linkname, name, dir_fd=parent)
    elif member.isfile() and not member.issparse():
        content = tar.extractfile(member)
        assert content is not None
        with os.fdopen(os.open(name, CREATE, 0o600, dir_fd=parent), "wb") as file:
            shutil.copyfileobj(content, file)
            os.fchmod(file.fileno(), member.mode & 0o777 | 0o600)
    else:
        raise BadRecord("is no file, no folder and no link that stays inside", path=member.name)


def _inside(path: str, target: str) -> bool:
    """Whether a link at `path` leads, read as text, to a place below the same root."""
    if PurePosixPath(target).is_absolute() or not target:
        return False
    depth = len(PurePosixPath(path).parts) - 1
    for step in PurePosixPath(target).parts:
        depth += -1 if step == ".." else 1
        if depth < 0:
            return False
    return True

"""A folder that belongs to programs nobody trusts, read and written from outside.

Enter: paths relative to it. Leave: bytes. Invariant: no path leads out of it, whatever links its
programs made, and what they did to their own files is a BadRecord, never a RuntimeFailure.
"""

import asyncio
import errno
import os
import secrets
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from environments.runtimes import archive
from environments.runtimes.beneath import CREATE, MACHINE, READ, parent_of, remove
from environments.runtimes.contract import MIB, Limits, Ran, RuntimeFailure, sayable
from flywheel.errors import BadRecord


class Order(NamedTuple):
    """One program to be run, as `exec` was told and filled in."""

    command: Sequence[str]
    stdin: bytes
    env: Mapping[str, str]
    limits: Limits
    cwd: str
    door: str | None


class Workspace:
    """What all runtimes share: `folder`/work with the programs' files, its snapshot beside it."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder = folder.absolute()
        self.work = self.folder / "work"
        self.limits = limits
        self.owner: int | None = None
        """User that the files belong to. None = whoever we are."""

    def make(self) -> None:
        with _machine(f"no workspace at {self.work}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            archive.settle(self.work)
            self.work.mkdir(mode=0o700, exist_ok=True)
            self.work.chmod(0o700)
            self._own()

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        cwd: str = ".",
        door: str | None = None,
    ) -> Ran:
        """
        Raises:
            BadRecord: a word of it is none that a program can be given.
        """
        sayable(command, env or {})
        given = stdin.encode() if isinstance(stdin, str) else stdin
        return await self.run(Order(command, given, env or {}, limits or self.limits, cwd, door))

    async def run(self, order: Order) -> Ran:
        """How this kind of runtime runs a program."""
        raise NotImplementedError

    async def read(self, path: str, *, limit: int = 16 * MIB) -> bytes:
        """
        Raises:
            BadRecord: no file, or one larger than `limit`.
        """
        with _known(path), parent_of(self.work, path) as (parent, name):
            _regular(os.stat(name, dir_fd=parent, follow_symlinks=False), path)
            fd = os.open(name, READ, dir_fd=parent)
        with os.fdopen(fd, "rb") as file:
            said = os.fstat(fd)
            _regular(said, path)  # a program that runs may have put another in its place
            data = file.read(limit + 1) if said.st_size <= limit else b""
        if max(said.st_size, len(data)) > limit:
            raise BadRecord(f"has {said.st_size} bytes, more than {limit}", path=path)
        return data

    async def write(self, path: str, data: str | bytes) -> None:
        """Replaces what is there in one step, be it a link or a pipe."""
        content = data.encode() if isinstance(data, str) else data
        with _known(path), parent_of(self.work, path, make=True, owner=self.owner) as at:
            self._put(*at, content)

    async def snapshot(self) -> Path:
        kept = self.folder / "snapshot.tar"
        with _machine(f"no snapshot of {self.work}"):
            return await asyncio.to_thread(archive.pack, self.work, kept, self.limits.workspace)

    async def restore(self, archived: Path) -> None:
        """
        Raises:
            BadRecord: it holds what no snapshot holds, or more than the workspace may; nothing is
                changed then.
        """
        with _machine(f"{archived} could not be restored in {self.work}"):
            await asyncio.to_thread(archive.unpack, archived, self.work, self.limits.workspace)
            self._own()

    def remove(self) -> None:
        with _machine(f"{self.work} could not be removed"):
            remove(self.work)

    def _own(self) -> None:
        if self.owner is None or self.work.stat().st_uid == self.owner:
            return
        command = ["chown", "--recursive", "--no-dereference", f"{self.owner}:{self.owner}"]
        subprocess.run([*command, "--", self.work], check=True, capture_output=True)

    def _put(self, parent: int, name: str, content: bytes) -> None:
        aside = f".{secrets.token_hex(8)}"
        fd = os.open(aside, CREATE, 0o600, dir_fd=parent)
        try:
            with os.fdopen(fd, "wb") as file:
                if self.owner is not None:
                    os.fchown(fd, self.owner, self.owner)
                file.write(content)
            os.rename(aside, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(aside, dir_fd=parent)
            raise


def _regular(said: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(said.st_mode):
        raise BadRecord("is no file", path=path)


@contextmanager
def _known(path: str) -> Iterator[None]:
    """Sorts faults of the files, which are their programs', from the machine's."""
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        if error.errno in MACHINE:
            raise RuntimeFailure(f"{path}: {said}") from error
        reason = {errno.ELOOP: "leads through a link", errno.ENOENT: "is not there"}
        raise BadRecord(reason.get(error.errno or 0, said), path=path) from error


@contextmanager
def _machine(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeFailure(f"{what}: {error}") from error

"""Looks at a tree of processes while it runs: memory, CPU time, size of its workspace.

Enter: the id of the tree's root and the bounds. Leaves: why the tree is to be ended; meanwhile
`Seen` says the most that was seen. Invariant: looking takes at most about a twentieth of the time,
whatever the program does.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from environments.runtimes.clock import Clock
from environments.runtimes.contract import Limits, Reason

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_SHARE = 20
"""What looking cost, times this, is slept."""
_SOON_S, _OFTEN_S, _SELDOM_S, _LONGEST_S = 0.002, 0.02, 0.1, 1.0
ENTRIES = 20_000
"""Files and folders that a workspace may hold."""
DEEPEST = 64
"""Folders in each other."""
_TOO_MUCH = 1 << 62


class Watchdog:
    """`grouped`: the kernel bounds the memory; only the rest is looked at, and less often. `own`:
    folders in memory that the tree has to itself, whose number of files nothing else bounds."""

    def __init__(
        self, limits: Limits, workspace: Path, *, grouped: bool, own: Sequence[str] = ()
    ) -> None:
        self.limits, self.workspace, self.grouped = limits, workspace, grouped
        self.own = own
        self.peak: int | None = None
        """Bytes. None = it ended before it was looked at."""
        self.cpu_s: float | None = None
        self.clock: Clock | None = None
        """What counts its CPU time. None = that is read off the processes that there are."""
        self.room = max(limits.workspace, size_of(workspace))
        """One that is over its limit already may be tidied, and not grow."""

    async def watch(self, root: int) -> Reason | None:
        pause = _SOON_S
        while True:
            await asyncio.sleep(pause)
            began = time.perf_counter()
            reason = self._look(root)
            if reason is not None:
                return reason
            cost = _SHARE * (time.perf_counter() - began)
            usual = _SELDOM_S if self.grouped else _OFTEN_S
            pause = min(max(min(2 * pause, usual), cost), _LONGEST_S)

    def used(self, seen: float = 0.0) -> float:
        """Seconds of CPU up to now."""
        counted = self.clock.seconds() if self.clock is not None else 0.0
        self.cpu_s = max(self.cpu_s or 0.0, seen, counted)
        return self.cpu_s

    def _look(self, root: int) -> Reason | None:
        memory, cpu_s, tree = 0, 0.0, tree_of(root)
        for pid in tree:
            resident, seconds = _use(pid)
            memory += resident
            cpu_s += seconds
        if tree:
            cpu_s = self.used(cpu_s)
            if not self.grouped and memory > self.limits.memory:
                memory = sum(map(_own_share, tree))
            self.peak = max(self.peak or 0, memory)
        if not self.grouped and memory > self.limits.memory:
            return "memory"
        if cpu_s > self.limits.cpu_s:
            return "timeout"
        if any(_files_in(root, folder) > ENTRIES for folder in self.own):
            return "output"
        return "output" if size_of(self.workspace) > self.room else None


def tree_of(root: int) -> list[int]:
    """The processes below `root`, itself among them; empty = it is gone."""
    found, left = [], [root]
    while left:
        pid = left.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as said:
                    left += map(int, said.read().split())
            found.append(pid)
    return found


def _use(pid: int) -> tuple[int, float]:
    """Bytes in memory now, and seconds of CPU with those of children that it waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as said:
            fields = said.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0.0
    return int(fields[21]) * _PAGE, sum(map(int, fields[11:15])) / _TICKS


def _own_share(pid: int) -> int:
    """Bytes, with what several processes share counted once over all of them; else all that it
    has, where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as said:
            for line in said:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _use(pid)[0]


def _files_in(root: int, folder: str) -> int:
    """Of the file system that the tree has there, once it no longer sees ours."""
    place = f"/proc/{root}/root{folder}"
    try:
        if os.stat(place).st_dev == os.stat(folder).st_dev:
            return 0
        said = os.statvfs(place)
    except OSError:
        return 0
    return said.f_files - said.f_ffree


def size_of(folder: Path) -> int:
    """Bytes of all files below; with too many entries, or too deep ones, more than any bound."""
    total, count, left = 0, 0, [(os.fspath(folder), 0)]
    while left:
        path, depth = left.pop()
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                count += 1
                if count > ENTRIES or depth > DEEPEST:
                    return _TOO_MUCH
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        left.append((entry.path, depth + 1))
                    else:
                        said = entry.stat(follow_symlinks=False)
                        total += max(said.st_size, said.st_blocks * 512)
    return total

"""A group of the kernel that bounds and measures the memory of one program's whole tree.

Enter: a limit. Leaves: a Group to start a program in, with what it used; None where this machine
lets us make none (then `watchdog` samples). Invariant: a group is empty before it is removed; one
that a crash left behind is removed by the next.
"""

import contextlib
import itertools
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "flywheel-"
_count = itertools.count()


class _Names(NamedTuple):
    """What a version of the kernel's interface calls its files."""

    limit: str
    peak: str
    events: str
    kills: str


_FIRST = _Names(
    "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control", "oom_kill"
)
_SECOND = _Names("memory.max", "memory.peak", "memory.events", "oom_kill")


class Group(NamedTuple):
    folder: Path
    names: _Names

    def enter(self, pid: int) -> None:
        """Moves a process here, with those that it starts from then on. Takes some ten
        milliseconds of waiting, not of work."""
        with contextlib.suppress(ProcessLookupError):
            (self.folder / "cgroup.procs").write_text(str(pid))

    def peak(self) -> int | None:
        """Bytes; None = this kernel does not say."""
        try:
            return int((self.folder / self.names.peak).read_text())
        except (OSError, ValueError):
            return None

    def cpu_s(self) -> float | None:
        """Of the whole tree; None = measured by another group, which we do not make."""
        try:
            said = dict(
                line.split() for line in (self.folder / "cpu.stat").read_text().splitlines()
            )
            return int(said["usage_usec"]) / 1e6
        except (OSError, ValueError, KeyError):
            return None

    def killed(self) -> bool:
        """Whether the kernel ended a process for its memory."""
        with contextlib.suppress(OSError):
            for line in (self.folder / self.names.events).read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == self.names.kills:
                    return int(count) > 0
        return False

    def remove(self) -> None:
        with contextlib.suppress(OSError):  # a zombie may still be in it: the next one sweeps
            self.folder.rmdir()


def make(memory: int) -> Group | None:
    """A group that may use `memory` bytes; None = none can be made here."""
    parent = _parent()
    if parent is None:
        return None
    names = _names(parent)
    group = Group(parent / f"{_PREFIX}{os.getpid()}-{next(_count)}", names)
    try:
        group.folder.mkdir()
        (group.folder / names.limit).write_text(str(memory))
        for extra, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            with contextlib.suppress(OSError):
                (group.folder / extra).write_text(value)
        return group
    except OSError:
        group.remove()
        return None


@cache
def _parent() -> Path | None:
    """Where groups can be made: found by making one. What a crash left there is swept."""
    for folder in _candidates(Path("/proc/self/cgroup").read_text()):
        trial = folder / f"{_PREFIX}{os.getpid()}-trial"
        try:
            trial.mkdir()
        except OSError:
            continue
        usable = (trial / _names(folder).limit).exists()
        trial.rmdir()
        if usable:
            _sweep(folder)
            return folder
    return None


def _candidates(said: str) -> list[Path]:
    """Our own group's folder and those above, by what the kernel says of us."""
    found = []
    for line in said.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found += [_ROOT / "memory" / path.lstrip("/"), _ROOT / "memory"]
        elif not controllers:
            own = _ROOT / path.lstrip("/")
            found += [own, *(above for above in own.parents if above.is_relative_to(_ROOT))]
    return found


def _names(parent: Path) -> _Names:
    return _FIRST if parent.is_relative_to(_ROOT / "memory") else _SECOND


def _sweep(folder: Path) -> None:
    for left in folder.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):
                left.rmdir()

"""Processes and listening sockets of this machine, as /proc tells them; nothing is asked or opened.

What belongs to other people cannot be read and is left out: an owner that is None is not known.
"""

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from flywheel.home import Home
from storage.locks import lock as try_lock

OURS = ("app.", "serving.", "flows.", "tasks.", "trainer")
"""Beginnings of the modules that we start by `python -m`."""
FOLLOWERS = (
    "serving.server", "serving.engines.", "serving.realign", "flows.server", "trainer",
    "vllm.entrypoints.",
)  # fmt: skip
"""Those that must not outlive the process that started them."""


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    words: tuple[str, ...]
    home: Path | None
    """The FLYWHEEL_HOME that it works in; None = not known."""

    @property
    def module(self) -> str:
        """What `python -m` runs in it; "" = nothing."""
        for flag, name in zip(self.words, self.words[1:], strict=False):
            if flag == "-m":
                return name
        return ""

    @property
    def command(self) -> str:
        return " ".join(self.words)[:120]


@dataclass(frozen=True)
class Listener:
    host: str
    port: int
    owner: Process | None


def processes() -> dict[int, Process]:
    """All that can be read, by pid."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        process = _process(folder)
        if process is not None:
            found[process.pid] = process
    return found


def belongs(process: Process, home: Home) -> bool:
    """Whether it works in this home, by its environment or by what it was given."""
    root = home.root
    named = any(word == str(root) or word.startswith(f"{root}/") for word in process.words)
    return process.home == root or named


def listeners() -> list[Listener]:
    """Every listening TCP socket."""
    owners, known = _owners(), processes()
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] != "0A":
                continue
            address, _, port = fields[1].partition(":")
            pid = owners.get(fields[9])
            owner = known.get(pid) if pid is not None else None
            found.append(Listener(_host(address, family), int(port, 16), owner))
    return found


def holders(lock: Path) -> list[int]:
    """Who holds a lock file, without touching it; [] = nobody, or nobody that can be seen."""
    try:
        about = lock.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    held = [line.split() for line in lines if "->" not in line]
    return [int(fields[4]) for fields in held if fields[5] == device]


def is_held(lock: Path) -> bool:
    """Whether a living process holds a lock file; one that is not there is held by nobody."""
    if holders(lock):
        return True
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(handle, shared=True)
    finally:
        os.close(handle)


def _process(folder: Path) -> Process | None:
    try:
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    if not words or fields[0] in "ZX":
        return None
    return Process(int(folder.name), int(fields[1]), tuple(words), _home(folder))


def _home(folder: Path) -> Path | None:
    try:
        lines = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        said = [line.partition("=")[2] for line in lines if line.startswith("FLYWHEEL_HOME=")]
        return ((folder / "cwd").resolve() / (said[0] if said else ".flywheel")).resolve()
    except OSError:
        return None


def _owners() -> dict[str, int]:
    """Inode of a socket -> who has it open."""
    found: dict[str, int] = {}
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for entry in folder.iterdir():
                name = _link(entry)
                if name.startswith("socket:["):
                    found[name[8:-1]] = int(folder.parent.name)
    return found


def _link(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except OSError:
        return ""  # closed meanwhile


def _host(address: str, family: socket.AddressFamily) -> str:
    """The kernel writes each 32 bits as a number of this machine."""
    parts = (int(address[start : start + 8], 16) for start in range(0, len(address), 8))
    return socket.inet_ntop(family, b"".join(struct.pack("=I", part) for part in parts))

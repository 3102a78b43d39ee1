"""Who reviews what right now, so that two people are never shown the same item.

One small file a project, changed under a lock: items with their holder and until when. An item
that was saved stays taken until the commit that has it can be seen. Time is counted since the
machine was started, so that a clock that is set forward or back ends no lease and keeps none.
"""

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from flywheel import durable
from flywheel.home import Home
from flywheel.records import Record
from storage.locks import held

MINUTES = 10.0
_SAVED_MINUTES = 60.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Lease(Record, frozen=True, kw_only=True):
    by: str
    holder: str
    """One page of one person."""
    boot: str
    """Which start of the machine `until` counts from."""
    until: float
    """Seconds since that start."""
    wall: float
    """The same moment as the clock showed it; used only after a restart of the machine."""
    saved: bool = False
    """What the holder said of it waits for the committer."""


def take(
    home: Home,
    project: str,
    items: Iterable[str],
    *,
    by: str,
    holder: str,
    minutes: float = MINUTES,
    again: bool = False,
) -> str | None:
    """The first of `items` that nobody else has, now this holder's; what the holder had before
    is free again. None = others have them all.

    Args:
        again: also one that this person saved a word on, which may not be committed yet.
    """
    with _changing(home, project) as leases:
        person = by if again else None
        free = next((one for one in items if _free(leases.get(one), holder, person)), None)
        for item, lease in list(leases.items()):
            if lease.holder == holder and not lease.saved:
                del leases[item]
        if free is not None:
            leases[free] = _lease(by, holder, minutes)
    return free


def renew(
    home: Home, project: str, item: str, *, by: str, holder: str, minutes: float = MINUTES,
    again: bool = False,
) -> bool:  # fmt: skip
    """Whether the item is still this holder's, now for `minutes` more: it is unless somebody else
    took it after it had run out.

    Args:
        again: also one that this person saved a word on, which may not be committed yet.
    """
    with _changing(home, project) as leases:
        if not _free(leases.get(item), holder, by if again else None):
            return False
        leases[item] = _lease(by, holder, minutes)
    return True


def saved(home: Home, project: str, item: str, *, by: str, holder: str) -> None:
    """Keeps the item from others until what was said of it is committed."""
    with _changing(home, project) as leases:
        leases[item] = msgspec.structs.replace(_lease(by, holder, _SAVED_MINUTES), saved=True)


def release(home: Home, project: str, item: str, *, holder: str) -> None:
    with _changing(home, project) as leases:
        if item in leases and leases[item].holder == holder:
            del leases[item]


def leased(home: Home, project: str) -> dict[str, Lease]:
    """The leases that run now, by item."""
    return {item: one for item, one in _read(_path(home, project)).items() if not _over(one)}


class _changing:
    """The leases of a project, written back when the block ends; one process at a time."""

    def __init__(self, home: Home, project: str) -> None:
        self._path = _path(home, project)
        lock = home.locks / f"leases-{project}.lock"
        self._held = held(lock, wait_s=10, busy=f"{lock} has been held for over 10 s")

    def __enter__(self) -> dict[str, Lease]:
        self._held.__enter__()
        found = _read(self._path)
        self._before = dict(found)
        self._leases = {item: one for item, one in found.items() if not _over(one)}
        return self._leases

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None and self._leases != self._before:
                durable.write(self._path, msgspec.json.encode(self._leases))
        finally:
            self._held.__exit__(None, None, None)


def _path(home: Home, project: str) -> Path:
    return home.leases / f"{project}.json"


def _read(path: Path) -> dict[str, Lease]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Lease])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}  # leases are for minutes: without them two may meet, and nothing is lost


def _free(lease: Lease | None, holder: str, person: str | None = None) -> bool:
    if lease is None or _over(lease):
        return True
    return lease.by == person if lease.saved else lease.holder == holder


def _over(lease: Lease) -> bool:
    if lease.boot == _boot():
        return _now() >= lease.until
    ahead = lease.wall - time.time()
    return ahead <= 0 or ahead > 60 * _SAVED_MINUTES


def _lease(by: str, holder: str, minutes: float) -> Lease:
    seconds = minutes * 60
    return Lease(by=by, holder=holder, boot=_boot(), until=_now() + seconds,
                 wall=time.time() + seconds)  # fmt: skip


def _now() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""

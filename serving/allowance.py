"""What keys and projects used lately, in one file that all gateway processes of a home map.

A slot an account: when its rates are free again (`serving.rates`), what it was served
(`serving.fair`), and how many of its requests each process has in work. Every number stands alone
and is written whole, and the lock is the kernel's: whoever is killed, wherever, leaves a file that
is sound, and what it had in work no longer counts. Nothing here is an account for bills: those are
the traces.
"""

import logging
import math
import mmap
import os
import struct
import time
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from flywheel.errors import Busy
from flywheel.records import Record
from serving import rates
from serving.presence import started
from serving.rates import Left
from storage.locks import Held

_SLOTS, _PROBES = 4096, 16
_PROCESSES = 128
_OWNER = struct.Struct("<q8s")
_NUMBERS = struct.Struct("<qqd")
_COUNT = struct.Struct("<H")
_COUNTS = struct.Struct(f"<{_PROCESSES}H")
_NAME = 16
_SLOT = _NAME + _NUMBERS.size + _COUNTS.size
_HEAD = _PROCESSES * _OWNER.size
_SIZE = _HEAD + _SLOTS * _SLOT
_MOST_COUNT = 2**16 - 1
_log = logging.getLogger("flywheel.gateway")


class Bound(Record, frozen=True, kw_only=True):
    """What one account may do; None = as much as it likes."""

    account: str
    requests: int | None = None
    """A minute."""
    tokens: int | None = None
    """A minute."""
    concurrent: int | None = None


class Over(Record, frozen=True, kw_only=True):
    """Which bound a request would break."""

    bound: Bound
    what: str
    """requests, tokens or concurrent."""
    wait_ns: int


class Room(Record, frozen=True, kw_only=True):
    """What the tightest of the accounts has left; None = there is no such limit."""

    requests: Left | None = None
    tokens: Left | None = None


class Allowance:
    """Implements `fair.Served`. The file is opened at the first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._map: mmap.mmap | None = None
        self._row = 0
        self._places: dict[str, int] = {}

    def take(self, bounds: Sequence[Bound], tokens: int) -> Over | None:
        """Books a request with all of the accounts, or with none."""
        with self._held() as data:
            now, slots = time.time_ns(), [self._place(data, one.account) for one in bounds]
            after = []
            for bound, at in zip(bounds, slots, strict=True):
                over = self._over(data, bound, at)
                if over is not None:
                    return over
                numbers = list(_NUMBERS.unpack_from(data, at + _NAME))
                for place, what, limit, cost in (
                    (0, "requests", bound.requests, 1),
                    (1, "tokens", bound.tokens, tokens),
                ):
                    if limit is not None:
                        numbers[place], wait = rates.pass_by(numbers[place], now, limit, cost)
                        if wait:
                            return Over(bound=bound, what=what, wait_ns=wait)
                after.append(numbers)
            for at, numbers in zip(slots, after, strict=True):
                _NUMBERS.pack_into(data, at + _NAME, *numbers)
                self._count(data, at, 1)
        return None

    def settle(self, bounds: Sequence[Bound], reserved: int, spent: int) -> None:
        """The request has ended: it is no more in work, and took `spent` tokens."""
        with self._held() as data:
            now = time.time_ns()
            for bound in bounds:
                at = self._place(data, bound.account)
                self._count(data, at, -1)
                if bound.tokens is not None:
                    requests, tat, served = _NUMBERS.unpack_from(data, at + _NAME)
                    tat = rates.correct(tat, now, bound.tokens, reserved, spent)
                    _NUMBERS.pack_into(data, at + _NAME, requests, tat, served)

    def room(self, bounds: Sequence[Bound]) -> Room:
        with self._held() as data:
            now = time.time_ns()
            found: list[list[Left]] = [[], []]
            for bound in bounds:
                tats = _NUMBERS.unpack_from(data, self._place(data, bound.account) + _NAME)
                for place, limit in enumerate((bound.requests, bound.tokens)):
                    if limit is not None:
                        found[place].append(rates.left(tats[place], now, limit))
        requests, tokens = (
            min(one, key=lambda left: left.remaining, default=None) for one in found
        )
        return Room(requests=requests, tokens=tokens)

    def served(self, project: str) -> float:
        with self._held() as data:
            return self._served(data, self._place(data, _of(project)))

    def serve(self, project: str, tokens: float) -> None:
        with self._held() as data:
            at = self._place(data, _of(project))
            requests, tat, _ = _NUMBERS.unpack_from(data, at + _NAME)
            _NUMBERS.pack_into(data, at + _NAME, requests, tat, self._served(data, at) + tokens)

    def close(self) -> None:
        if self._file is not None:
            with self._held() as data:
                self._leave(data, self._row)
            os.close(self._file)
            self._file = self._map = None

    # --- inside: all of it under the lock ---------------------------------------------------------

    def _held(self) -> Held[mmap.mmap]:
        if self._file is None or self._map is None:
            self._file, self._map = _open(self._path)
            with Held(self._file, self._map) as data:
                self._row = self._enter(data)
        return Held(self._file, self._map)

    def _enter(self, data: mmap.mmap) -> int:
        """A row of counts for this process: a free one, or that of one that is gone."""
        self._sweep(data)
        for row in range(_PROCESSES):
            if not _OWNER.unpack_from(data, row * _OWNER.size)[0]:
                _OWNER.pack_into(data, row * _OWNER.size, os.getpid(), _start(os.getpid()))
                return row
        raise Busy(f"more than {_PROCESSES} gateway processes use {self._path}")

    def _sweep(self, data: mmap.mmap) -> None:
        """What processes that are gone had in work is in work no more."""
        for row in range(_PROCESSES):
            pid, start = _OWNER.unpack_from(data, row * _OWNER.size)
            if pid and _start(pid) != start:
                self._leave(data, row)

    def _leave(self, data: mmap.mmap, row: int) -> None:
        for at in range(_HEAD, _SIZE, _SLOT):
            if data[at]:
                _COUNT.pack_into(data, _count_at(at, row), 0)
        _OWNER.pack_into(data, row * _OWNER.size, 0, b"")

    def _over(self, data: mmap.mmap, bound: Bound, at: int) -> Over | None:
        if bound.concurrent is None or _in_work(data, at) < bound.concurrent:
            return None
        self._sweep(data)
        if _in_work(data, at) < bound.concurrent:
            return None
        return Over(bound=bound, what="concurrent", wait_ns=0)

    def _count(self, data: mmap.mmap, at: int, by: int) -> None:
        (now,) = _COUNT.unpack_from(data, _count_at(at, self._row))
        _COUNT.pack_into(data, _count_at(at, self._row), min(max(now + by, 0), _MOST_COUNT))

    def _served(self, data: mmap.mmap, at: int) -> float:
        served: float = _NUMBERS.unpack_from(data, at + _NAME)[2]
        return served if math.isfinite(served) else 0.0

    def _place(self, data: mmap.mmap, account: str) -> int:
        """Where the account's slot begins; one that was idle the longest makes room."""
        name = _name(account)
        mark = b"\1" + name
        known = self._places.get(account)
        if known is not None and data[known : known + _NAME] == mark:
            return known
        first = int.from_bytes(name[:8], "little")
        places = [_HEAD + (first + probe) % _SLOTS * _SLOT for probe in range(_PROBES)]
        at = next((one for one in places if data[one : one + _NAME] == mark), None)
        if at is None:
            at = next((one for one in places if not data[one]), None)
            at = min(places, key=lambda one: _idle(data, one)) if at is None else at
            data[at : at + _SLOT] = mark + bytes(_SLOT - _NAME)
        self._places[account] = at
        return at


@lru_cache(maxsize=1024)
def _name(account: str) -> bytes:
    return blake2b(account.encode(), digest_size=_NAME - 1).digest()


def _of(project: str) -> str:
    return f"project {project}"


def _count_at(at: int, row: int) -> int:
    return at + _NAME + _NUMBERS.size + row * _COUNT.size


def _in_work(data: mmap.mmap, at: int) -> int:
    return sum(_COUNTS.unpack_from(data, _count_at(at, 0)))


def _idle(data: mmap.mmap, at: int) -> tuple[int, int]:
    requests, tokens, _ = _NUMBERS.unpack_from(data, at + _NAME)
    return _in_work(data, at), max(requests, tokens)


def _start(pid: int) -> bytes:
    begun = started(pid)
    return b"" if begun is None else blake2b(begun.encode(), digest_size=8).digest()


def _open(path: Path) -> tuple[int, mmap.mmap]:
    """Room is taken on the disk before it is mapped: a full one must not kill who writes later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size < _SIZE:
            os.posix_fallocate(file, 0, _SIZE)
        return file, mmap.mmap(file, _SIZE)
    except OSError as error:
        _log.warning("no room for %s (%s): limits hold for each process alone", path, error)
        return file, mmap.mmap(-1, _SIZE)

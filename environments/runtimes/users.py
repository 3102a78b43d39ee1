"""A user id of its own for each sandbox, where we are root and can give one.

Enter: nothing; leaves: an id that no other sandbox of this machine has until it is given back or
this process is gone. Invariant: two sandboxes that run at once never share one: the kernel counts
the processes of a user together, and lets one user's processes signal each other.
"""

import fcntl
import os
import random
from pathlib import Path
from typing import NamedTuple

from environments.runtimes.contract import RuntimeFailure

_HIGH, _LOW, _MANY = 1_900_000_000, 60_000, 4096
"""Above what containers and services are given; the low ones where a container of ours is not
itself given so many."""
_LOCKS = Path("/run/flywheel-users")


class User(NamedTuple):
    uid: int
    lock: int
    """The open file whose lock says that the id is taken; a forked child holds it too."""


def take() -> User:
    """
    Raises:
        RuntimeFailure: all are taken.
    """
    _LOCKS.mkdir(mode=0o700, exist_ok=True)
    first = _first(Path("/proc/self/uid_map").read_text())
    start = random.SystemRandom().randrange(_MANY)
    for number in range(_MANY):
        uid = first + (start + number) % _MANY
        lock = os.open(_LOCKS / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return User(uid, lock)
        except BlockingIOError:
            os.close(lock)
    raise RuntimeFailure(f"all {_MANY} user ids of sandboxes are taken: {_LOCKS}")


def give_back(user: User) -> None:
    os.close(user.lock)


def _first(uid_map: str) -> int:
    """The first id to give, by what the kernel says of the ids that we ourselves are given."""
    ranges = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    whole = any(inside <= _HIGH and inside + many >= _HIGH + _MANY for inside, _, many in ranges)
    return _HIGH if whole else _LOW

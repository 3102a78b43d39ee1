"""What a check is given, and what it says: a line with its level, and the remedy where one is due.

A check is a generator, so that what it said before it hung or raised is kept. A text among its
findings is not told: it says what is looked at from there on, in case nothing more comes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flywheel.home import Home
from flywheel.plain import many as many
from flywheel.records import Record
from flywheel.settings import Settings

Level = Literal["ok", "warning", "wrong"]


class Finding(Record, frozen=True):
    level: Level
    says: str
    remedy: str | None = None
    """What mends it; None = there is nothing to mend."""


@dataclass(frozen=True)
class Case:
    """What is looked at."""

    home: Home
    settings: Settings
    folders: tuple[Path, ...] = ()
    """Of the projects, those that were named or that the home knows."""
    deep: bool = False
    """Also what takes long: weights are loaded, every segment is read."""


Looks = Callable[[Case], Iterator[Finding | str]]


@dataclass(frozen=True)
class Check:
    looks: Looks
    limit_s: float = 20.0
    """After which it is cut off."""
    apart: bool = False
    """Runs in a process of its own: it calls code that may hang or end its process."""
    deep_limit_s: float | None = None
    """The limit of a deep look; None = the same."""


def ok(says: str) -> Finding:
    return Finding("ok", _plain(says))


def warning(says: str, remedy: str) -> Finding:
    return Finding("warning", _plain(says), _plain(remedy))


def wrong(says: str, remedy: str) -> Finding:
    return Finding("wrong", _plain(says), _plain(remedy))


def _plain(text: str) -> str:
    """A name that is no UTF-8 is told all the same."""
    return text.encode("utf-8", "backslashreplace").decode()


def ago(seconds: float) -> str:
    """A stretch of time as people say it."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} seconds"


def size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError

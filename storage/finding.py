"""The proof of an erasure: every place of a home that holds one of some ids, texts or tokens.

Enters a home; leave the places that hold something, and how many bytes were looked through. Files
are known by their first bytes: zstd, gzip, zip, Parquet, SQLite and DuckDB are looked into, and
databases also at their bytes, where rows that were deleted may still lie. Bounded: a window at a
time. Invariant: a file that cannot be read is a place where something may be, and is told.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from flywheel.progress import report
from storage.containers import Window, windows_in, windows_of
from storage.lake import Lake
from storage.needles import Search

_BATCH = 8 << 20


class Place(NamedTuple):
    path: Path
    inside: str
    """Member, table or row group; "" = the file itself."""
    kind: str
    """id, text, tokens, or why it cannot be said."""
    readable: bool = True


@dataclass
class Found:
    places: list[Place] = field(default_factory=list)
    looked: Counter[str] = field(default_factory=Counter)
    """First folder or file of the home -> bytes looked through, unpacked."""

    @property
    def files(self) -> list[Path]:
        return list(dict.fromkeys(place.path for place in self.places))


def find(root: Path, search: Search, *, leave: Collection[Path] = ()) -> Found:
    """Looks through every file under `root`.

    Args:
        leave: folders and files that are not looked at.
    """
    found = Found()
    if search.empty or not root.exists():
        return found
    files = list(_files(root, frozenset(leave)))
    waiting: list[tuple[Path, Window]] = []
    size = 0
    for number, path in enumerate(files):
        area = path.relative_to(root).parts[0] if path != root else path.name
        try:
            for window in windows_of(path, search.overlap):
                found.looked[area] += len(window.data)
                waiting.append((path, window))
                size += len(window.data)
                if size >= _BATCH:
                    _look(search, waiting, found)
                    waiting, size = [], 0
                    report("searching", number, len(files))
        except FileNotFoundError:
            continue  # it went meanwhile
        except (OSError, ValueError) as error:
            found.places.append(Place(path, "", f"it cannot be read: {error}", False))
    _look(search, waiting, found)
    return found


def look_in_lake(lake: Lake, search: Search, found: Found) -> None:
    """Looks through every object of a lake, and adds to `found`."""
    waiting: list[tuple[Path, Window]] = []
    for one in lake.list(""):
        place = Path("lake") / one.key
        try:
            waiting += ((place, window) for window in windows_in(lake.get(one.key), search.overlap))
        except KeyError:
            continue
        except ValueError as error:
            found.places.append(Place(place, "", f"it cannot be read: {error}", False))
        if sum(len(window.data) for _, window in waiting) >= _BATCH:
            found.looked["lake"] += _look(search, waiting, found)
            waiting = []
    found.looked["lake"] += _look(search, waiting, found)


def _look(search: Search, waiting: list[tuple[Path, Window]], found: Found) -> int:
    """Returns the bytes of `waiting`."""
    known = {(place.path, place.inside) for place in found.places}
    for pages in (False, True):
        some = [one for one in waiting if one[1].pages is pages]
        for at, kind in search.hits([window.data for _, window in some], pages=pages):
            path, window = some[at]
            if (path, window.inside) not in known:
                known.add((path, window.inside))
                found.places.append(Place(path, window.inside, kind))
    return sum(len(window.data) for _, window in waiting)


def _files(root: Path, leave: frozenset[Path]) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root, followlinks=False):
        here = Path(folder)
        folders[:] = sorted(one for one in folders if here / one not in leave)
        for name in sorted(names):
            path = here / name
            if path not in leave and path.is_file() and not path.is_symlink():
                yield path

"""Raw bytes and datasets of a home in its lake, so that other machines have them too.

Files that the lake has not are put there; what is absent here is fetched from there, once. Both are
named by their content, and nothing but an erasure changes them.
"""

import contextlib
from pathlib import Path

from flywheel import durable
from flywheel.home import Home
from storage.lake import Lake, open_lake

FOLDERS = ("raw/", "datasets/")


def mirror(home: Home, lake: Lake, *, exact: bool = False) -> int:
    """Puts what the lake has not; returns how many files.

    Args:
        exact: also removes there what is not here: it was erased.
    """
    put = 0
    for folder in FOLDERS:
        there = {one.key for one in lake.list(folder)}
        here = {home.relative(path): path for path in _files(home.root / folder)}
        for key, path in here.items():
            if key in there:
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                put += lake.put_new(key, path.read_bytes())
        for key in there - here.keys() if exact else ():
            lake.delete(key)
    return put


def renew(home: Home, lake: Lake) -> int:
    """The same after an erasure: what is gone here goes there, and of datasets what was cleaned,
    though its name is the same, is put anew."""
    put = mirror(home, lake, exact=True)
    for key in [one.key for one in lake.list("datasets/")]:
        with contextlib.suppress(FileNotFoundError, KeyError):  # removed meanwhile
            data = home.path(key).read_bytes()
            if lake.get(key) != data:
                lake.delete(key)
                put += lake.put_new(key, data)
    return put


def brought(home: Home, path: Path) -> bool:
    """Whether `path`, a raw object or a dataset's folder that is absent here, came from the lake.

    Raises:
        LakeError: the lake cannot be reached.
        CorruptFile: what lies there is no raw object of this name; nothing is kept of it.
    """
    if home.lake is None:
        return False
    from storage.foreign import raw

    lake, key = open_lake(home.lake), home.relative(path)
    with contextlib.suppress(KeyError):
        data = lake.get(key)
        durable.write(path, raw(key.removeprefix("raw/"), data))
        return True
    files = [one.key for one in lake.list(f"{key}/")]
    # The manifest comes last: a folder with one is whole, one without it is fetched again.
    for one in sorted(files, key=lambda name: name.endswith("manifest.json")):
        with contextlib.suppress(KeyError):
            durable.write(home.path(one), lake.get(one))
    return bool(files)


def brought_dataset(home: Home, id: str) -> Path | None:
    """The folder of a dataset that is absent here and came from the lake.

    Raises:
        LakeError: the lake cannot be reached.
    """
    if home.lake is None:
        return None
    keys = [one.key for one in open_lake(home.lake).list("datasets/") if f"/{id}/" in one.key]
    folder = home.path(keys[0]).parent if keys else None
    return folder if folder is not None and brought(home, folder) else None


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.parts[-3:])
    )  # fmt: skip

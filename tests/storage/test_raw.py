from pathlib import Path

import pytest

from flywheel.errors import CorruptFile
from flywheel.home import Home
from storage.raw import RawStore


def test_bytes_come_back_and_are_kept_once(home: Home) -> None:
    store = RawStore(home)
    for data in (b"", b"\x00\xff" * 10, b"x" * 5_000_000):
        key = store.put(data)
        assert store.put(data) == key
        assert store.get(key) == data
    assert sum(path.is_file() for path in home.raw.rglob("*")) == 3
    assert sum(path.stat().st_size for path in home.raw.rglob("*")) < 100_000


def test_what_is_not_there_or_not_a_digest_is_a_key_error(home: Home) -> None:
    for key in ("0" * 32, "../../etc/passwd", "", "G" * 32):
        with pytest.raises(KeyError):
            RawStore(home).get(key)


def test_changed_bytes_are_noticed(home: Home) -> None:
    store = RawStore(home)
    one, other = store.put(b"one"), store.put(b"other")
    paths = {path.stem: path for path in home.raw.rglob("*.zst")}
    paths[one].write_bytes(paths[other].read_bytes())
    with pytest.raises(CorruptFile, match="other bytes"):
        store.get(one)
    Path(paths[other]).write_bytes(b"junk")
    with pytest.raises(CorruptFile, match="unpacked"):
        store.get(other)

from pathlib import Path

import pytest

from flywheel.errors import CorruptFile
from flywheel.home import Home
from storage.raw import RawStore, part


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


@pytest.mark.parametrize(
    ("place", "named"),
    [("", (0, 9)), ("2+3", (2, 3)), ("0+9", (0, 9)), ("8+2", (0, 0)), ("-5+10", (0, 0)),
     ("a+b", (0, 0)), ("1", (0, 0)), ("0+99999999999999", (0, 0)), ("1+1+1", (0, 0))],
)  # fmt: skip
def test_a_place_leads_nowhere_but_into_its_bytes(place: str, named: tuple[int, int]) -> None:
    """An erasure blanks what is there: no sender's word makes it write beyond."""
    assert part(place, 9) == named


def test_what_the_lake_has_under_another_name_is_not_kept(tmp_path: Path) -> None:
    lake, home = Home(tmp_path / "lake"), Home(tmp_path / "home", lake=str(tmp_path / "lake"))
    right, wrong = RawStore(lake).put(b"right"), RawStore(lake).put(b"wrong")
    path = {one.stem: one for one in lake.raw.rglob("*.zst")}
    path[right].write_bytes(path[wrong].read_bytes())
    with pytest.raises(CorruptFile, match="other bytes"):
        RawStore(home).get(right)
    assert RawStore(home).put(b"right") == right and RawStore(home).get(right) == b"right"


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

"""A bounded memory of what answers left: whose it is, and what is forgotten first."""

from pathlib import Path

import pytest

from flywheel.errors import FlywheelError
from storage.remembered import Remembered


def test_what_was_left_is_its_owners_alone_and_outlives_the_process(tmp_path: Path) -> None:
    one = Remembered(tmp_path / "x")
    one.add("a", "ann", b"said", b"left")
    other = Remembered(tmp_path / "x")
    assert other.find("a", "ann") == (b"said", b"left")
    assert other.find("a", "bob") is None
    assert not other.drop("a", "bob") and other.drop("a", "ann")
    assert one.find("a", "ann") is None
    one.close()
    other.close()


def test_the_oldest_are_forgotten_by_number_size_and_age(tmp_path: Path) -> None:
    few = Remembered(tmp_path / "few", rows=10)
    small = Remembered(tmp_path / "small", size=8000)
    for number in range(129):
        few.add(str(number), "", b"x", b"")
        small.add(str(number), "", b"x" * 900, b"")
    assert few.find("128", "") and not few.find("0", "")
    assert small.find("128", "") and not small.find("100", "")
    with pytest.raises(FlywheelError, match="too large"):
        small.add("large", "", b"x" * 1001, b"")
    old = Remembered(tmp_path / "few", seconds=0)
    assert old.find("128", "") is None

"""What names a process is believed only where it names one that is there."""

import pytest

from serving.presence import started
from tasks.beats import alive, myself


def test_this_process_is_alive_and_another_of_its_number_is_not() -> None:
    assert alive(myself())
    assert not alive(myself() + "0")


@pytest.mark.parametrize("process", ["", "@", "garbage", "12", "-1@x", "0@x", "9" * 300 + "@x",
                                     "9" * 5000 + "@x", "²@x", "1.5@x", "1\0@x"])  # fmt: skip
def test_what_names_no_process_is_not_alive(process: str) -> None:
    assert not alive(process)


@pytest.mark.parametrize("pid", [-1, 0, 2**31, 10**300])
def test_a_number_that_no_process_has_began_never(pid: int) -> None:
    assert started(pid) is None

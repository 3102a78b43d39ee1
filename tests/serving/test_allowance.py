"""What keys and projects may still do, over processes that share it and may be killed."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import allowance
from serving.allowance import Allowance, Bound

KEY = Bound(account="key shop", requests=3, tokens=1000, concurrent=2)
PROJECT = Bound(account="project support", tokens=100)


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Allowance]:
    one = Allowance(tmp_path / "admission")
    yield one
    one.close()


def over(one: Allowance, *bounds: Bound, tokens: int = 1) -> str | None:
    found = one.take(bounds, tokens)
    return found and f"{found.bound.account}: {found.what}"


def test_what_one_account_refuses_is_booked_with_none(mine: Allowance) -> None:
    assert over(mine, KEY, PROJECT, tokens=100) is None
    assert over(mine, KEY, PROJECT, tokens=1) == "project support: tokens"
    room = mine.room([KEY, PROJECT])
    assert room.requests and room.requests.remaining == 2
    assert room.tokens and (room.tokens.limit, room.tokens.remaining) == (100, 0)
    mine.settle([KEY, PROJECT], 100, 40)
    left = mine.room([PROJECT]).tokens
    assert left and 60 <= left.remaining <= 100
    found = mine.take([PROJECT], 100)
    assert found is not None and 0 < found.wait_ns <= allowance.rates.MINUTE


def test_requests_in_work_are_counted_until_they_end(mine: Allowance) -> None:
    bound = Bound(account="key shop", concurrent=2)
    assert over(mine, bound) is None and over(mine, bound) is None
    assert over(mine, bound) == "key shop: concurrent"
    mine.settle([bound], 1, 1)
    assert over(mine, bound) is None


def _use_up(path: Path, then: str) -> None:
    one = Allowance(path)
    while one.take([KEY], 10) is None:
        pass
    if then == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    one.close()


def test_processes_share_it_and_one_that_is_killed_has_nothing_in_work(
    tmp_path: Path, mine: Allowance
) -> None:
    path = tmp_path / "admission"
    assert over(mine, KEY) is None
    for then in ("die", "close"):
        child = multiprocessing.get_context("fork").Process(target=_use_up, args=(path, then))
        child.start()
        child.join(30)
    # One at a time is in work, ours; three in a minute were let in, theirs and ours.
    mine.settle([KEY], 1, 1)
    assert over(mine, KEY) == "key shop: requests"
    only = Bound(account="key shop", concurrent=2)
    assert over(mine, only) is None and over(mine, only) is None
    assert over(mine, only) == "key shop: concurrent"


def test_what_projects_were_served_is_known_to_all_processes(tmp_path: Path) -> None:
    one, two = Allowance(tmp_path / "a" / "b"), Allowance(tmp_path / "a" / "b")
    one.serve("support", 40.5)
    two.serve("support", 2)
    assert one.served("support") == 42.5 and two.served("other") == 0
    one.close()
    assert two.served("support") == 42.5
    two.close()


def test_any_bytes_in_the_file_are_mended_within_two_minutes(tmp_path: Path) -> None:
    path = tmp_path / "admission"
    one = Allowance(path)
    one.serve("support", 1)
    take = Bound(account="project support", requests=1)
    place = one._places["project support"]
    one.close()
    data = bytearray(path.read_bytes())
    data[place + 16 : place + 40] = b"\x7f" * 16 + b"\xff" * 8
    data[:2048] = b"\x7f" * 2048
    path.write_bytes(bytes(data))
    two = Allowance(path)
    assert two.served("support") == 0
    found = two.take([take], 1)
    assert found is not None and found.wait_ns <= 2 * allowance.rates.MINUTE
    two.close()


def test_more_accounts_than_there_is_room_for_push_out_the_idlest(
    mine: Allowance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowance, "_SLOTS", 16)
    busy = Bound(account="busy", concurrent=1)
    assert over(mine, busy) is None
    for number in range(40):
        one = Bound(account=f"key {number}", requests=9)
        assert over(mine, one) is None
        mine.settle([one], 1, 1)
    assert over(mine, busy) == "busy: concurrent"


def test_a_full_disk_leaves_limits_that_hold_in_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    one = Allowance(tmp_path / "admission")
    bound = Bound(account="key a", concurrent=1)
    assert over(one, bound) is None and over(one, bound) == "key a: concurrent"
    one.close()

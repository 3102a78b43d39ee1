"""Two reviewers never get the same item, whatever the clock and whoever dies."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from flywheel.home import Home
from storage import leases

ITEMS = [f"item-{number}" for number in range(40)]


def take(home: Home, holder: str, minutes: float = 10.0) -> str | None:
    return leases.take(home, "shop", ITEMS, by=holder, holder=holder, minutes=minutes)


def test_each_holder_gets_the_first_free_item_and_gives_back_the_one_before(home: Home) -> None:
    assert (take(home, "a"), take(home, "b")) == ("item-0", "item-1")
    assert leases.take(home, "shop", ITEMS[2:], by="a", holder="a") == "item-2"
    assert take(home, "c") == "item-0"
    assert leases.take(home, "shop", ["item-0"], by="d", holder="d") is None


def test_what_was_saved_is_not_offered_to_anybody_again(home: Home) -> None:
    assert take(home, "a") == "item-0"
    leases.saved(home, "shop", "item-0", by="a", holder="a")
    assert take(home, "a") == "item-1" and take(home, "b") == "item-2"
    leases.release(home, "shop", "item-0", holder="a")
    assert take(home, "c") == "item-0"


def test_who_saved_a_word_may_go_back_to_it_and_nobody_else(home: Home) -> None:
    leases.saved(home, "p", "a", by="ann", holder="one")
    assert leases.take(home, "p", ["a"], by="ben", holder="two", again=True) is None
    assert leases.take(home, "p", ["a"], by="ann", holder="new page", again=True) == "a"
    assert leases.renew(home, "p", "a", by="ann", holder="new page")
    assert leases.take(home, "p", ["a"], by="ben", holder="two") is None


def test_a_lease_that_ran_out_is_lost_only_when_somebody_took_it(home: Home) -> None:
    assert take(home, "a", minutes=0) == "item-0"
    assert leases.renew(home, "shop", "item-0", by="a", holder="a", minutes=0)
    assert take(home, "b") == "item-0"
    assert not leases.renew(home, "shop", "item-0", by="a", holder="a")
    assert leases.leased(home, "shop")["item-0"].by == "b"


@pytest.mark.parametrize("jump", [10**8, -(10**8)])
def test_a_clock_that_jumps_neither_ends_nor_keeps_a_lease(
    home: Home, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    assert take(home, "a") == "item-0"
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert take(home, "b") == "item-1"
    since_boot = leases._now()
    monkeypatch.setattr(leases, "_now", lambda: since_boot + 601)
    assert take(home, "c") == "item-0"


def test_a_restart_of_the_machine_ends_leases_by_the_clock(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert take(home, "a") == "item-0"
    other = tmp_path / "boot_id"
    other.write_text("another start")
    monkeypatch.setattr(leases, "_BOOT", other)
    assert take(home, "b") == "item-1"
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert take(home, "c") == "item-0"


def test_a_damaged_file_only_ends_leases(home: Home) -> None:
    assert take(home, "a") == "item-0"
    (home.leases / "shop.json").write_bytes(b"{torn")
    assert take(home, "b") == "item-0"


def test_many_processes_at_once_get_different_items(home: Home, tmp_path: Path) -> None:
    children = []
    for number in range(8):
        if (child := os.fork()) == 0:
            got = [leases.take(home, "shop", ITEMS, by="x", holder=f"{number}-{k}")
                   for k in range(5)]  # fmt: skip
            (tmp_path / f"got-{number}").write_bytes(msgspec.json.encode(got))
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(one, 0)[1] == 0 for one in children)
    got = [msgspec.json.decode(file.read_bytes()) for file in tmp_path.glob("got-*")]
    assert sorted(item for some in got for item in some) == sorted(ITEMS)

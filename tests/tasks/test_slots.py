"""A slot is worked off once: repeated, late, concurrent and clock-tossed starts; tries again."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flywheel.home import Home
from tasks import slots
from tasks.slots import claim

NINE = datetime(2026, 11, 29, 9, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
SOON = timedelta(seconds=3)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def start(
    home: Home,
    slot: datetime,
    run: str,
    *,
    now: datetime | None = None,
    name: str = "turn/sorting",
    scheduled: bool = True,
) -> str | None:
    return claim(home, name, slot, run, now=now or slot + SOON, scheduled=scheduled)


def test_a_second_run_of_a_slot_is_told_which_run_has_it(home: Home) -> None:
    """Leftover schedules and upgrades make two runs of one deployment and one moment."""
    assert start(home, NINE, "a") is None
    said = start(home, NINE, "b", now=NINE + HOUR)
    assert said and "taken by run a" in said and "turn/sorting" in said


def test_the_run_that_has_the_slot_goes_on_when_it_is_begun_again(home: Home) -> None:
    assert start(home, NINE, "a") is None
    assert start(home, NINE + HOUR, "b") is None
    assert start(home, NINE, "a", now=NINE + 3 * HOUR) is None


def test_other_deployments_and_other_homes_have_slots_of_their_own(home: Home) -> None:
    assert start(home, NINE, "a") is None
    assert start(home, NINE, "b", name="grade/sorting") is None
    assert start(home, NINE, "c", name="turn/other") is None
    assert start(Home(home.root / "second"), NINE, "d") is None


def test_the_same_moment_in_another_zone_is_the_same_slot(home: Home) -> None:
    from zoneinfo import ZoneInfo

    assert start(home, NINE, "a") is None
    assert start(home, NINE.astimezone(ZoneInfo("Europe/Berlin")), "b") is not None


def test_of_starts_at_once_one_gets_the_slot(home: Home) -> None:
    ready, told = threading.Barrier(16), {}

    def begin(run: str) -> None:
        ready.wait()
        told[run] = start(home, NINE, run)

    threads = [threading.Thread(target=begin, args=(f"run-{n}",)) for n in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    winners = [run for run, why in told.items() if why is None]
    assert len(told) == 16 and len(winners) == 1
    assert all(winners[0] in why for why in told.values() if why)


@pytest.mark.parametrize("order", [range(10), range(9, -1, -1), (4, 9, 0, 2, 7, 1, 3, 5, 6, 8)])
def test_what_a_sleeping_machine_missed_is_made_up_for_once(home: Home, order: range) -> None:
    """Ten hourly runs are late; they start in any order when the machine wakes."""
    assert start(home, NINE, "before") is None
    woken = NINE + 11 * HOUR
    late = [NINE + HOUR * (number + 1) for number in order]
    told = [start(home, slot, f"{slot:%H}", now=woken) for slot in late]
    assert told.count(None) == 1
    assert all("stands for all that was due" in why for why in told if why)
    assert start(home, NINE + 11 * HOUR, "next", now=woken + SOON) is not None, "was due as well"
    assert start(home, NINE + 12 * HOUR, "after") is None


def test_a_clock_set_back_does_not_run_old_slots_again_nor_stop_new_ones(home: Home) -> None:
    for hour in range(5):
        assert start(home, NINE + hour * HOUR, f"run-{hour}") is None
    back = NINE + timedelta(minutes=30)
    for hour in range(1, 5):
        assert start(home, NINE + hour * HOUR, f"again-{hour}", now=back + hour * HOUR)
    assert start(home, NINE + 5 * HOUR, "new") is None


def test_a_clock_that_was_years_ahead_does_not_stop_todays_slots(home: Home) -> None:
    ahead = NINE + timedelta(days=365 * 70)
    assert start(home, ahead, "ahead") is None
    assert start(home, NINE, "today") is None
    assert start(home, NINE + HOUR, "later") is None
    assert start(home, NINE, "again") is not None


def test_what_a_person_or_an_event_starts_takes_its_own_moment_only(home: Home) -> None:
    assert start(home, NINE, "scheduled", now=NINE + 2 * HOUR) is None
    asked = NINE + HOUR
    assert start(home, asked, "asked", scheduled=False) is None
    assert start(home, asked, "twice", scheduled=False) is not None


def test_a_claim_that_cannot_be_read_does_not_stop_the_slot(home: Home) -> None:
    assert start(home, NINE, "a") is None
    (file,) = (home.prefect / "slots").glob("*/*.json")
    file.write_bytes(b"{torn")
    assert start(home, NINE, "b") is None


def test_old_claims_are_dropped_and_the_newest_kept(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_MOST", 20)
    monkeypatch.setattr(slots, "_KEPT", 10)
    for minute in range(40):
        assert start(home, NINE + timedelta(minutes=minute), f"run-{minute}") is None
    assert len(list((home.prefect / "slots").glob("*/*.json"))) <= 22
    assert start(home, NINE + timedelta(minutes=39), "again") is not None

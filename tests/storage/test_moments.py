import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flywheel.home import Home
from flywheel.lineage import Decision
from storage.committer import commit
from storage.inbox import Inbox
from storage.moments import moment
from storage.queries import records

YEAR = 365 * 86400 * 10**9


def test_moments_only_grow_however_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, now = Home(tmp_path), time.time_ns()
    given = []
    for clock in (now, now - 3600 * 10**9, now - YEAR, now + 10):
        monkeypatch.setattr(time, "time_ns", lambda clock=clock: clock)
        given.append(moment(home))
    assert given == [now, now + 1, now + 2, now + 10]


def test_a_home_without_its_file_goes_on_after_the_ledgers_last_decision(tmp_path: Path) -> None:
    home, ahead = Home(tmp_path), time.time_ns() + YEAR
    decision = Decision(
        id="d", project="p", outcome="refused", gate="data", reason="", by="x", at=ahead
    )
    Inbox(home).append([decision])
    commit(home)
    assert moment(home) == ahead + 1
    (home.root / "moment").write_bytes(b"\0\0")  # torn, as by a power cut of another program
    assert moment(home) == ahead + 1


@pytest.mark.parametrize("said", [b"9223372036854775807", b"1" + b"0" * 30, b"9" * 5000, b"-5"])
def test_what_no_clock_shows_is_not_believed_and_decisions_go_on(
    tmp_path: Path, said: bytes
) -> None:
    home, now = Home(tmp_path), time.time_ns()
    decision = Decision(
        id="d", project="p", outcome="refused", gate="data", reason="", by="x", at=now + YEAR
    )
    Inbox(home).append([decision])
    commit(home)
    (home.root / "moment").write_bytes(said)
    given = moment(home)
    assert given == now + YEAR + 1
    Inbox(home).append([Decision(id="e", project="p", outcome="refused", gate="data", reason="",
                                 by="x", at=given)])  # fmt: skip
    commit(home)
    assert {one.id for one in records(home, "decision")} == {"d", "e"}


def test_a_decision_that_no_clock_shows_is_not_counted_on_from(tmp_path: Path) -> None:
    home, now = Home(tmp_path), time.time_ns()
    decision = Decision(
        id="d", project="p", outcome="refused", gate="data", reason="", by="x", at=2**63 - 1
    )
    Inbox(home).append([decision])
    commit(home)
    assert now <= moment(home) < now + YEAR


def test_many_at_once_get_moments_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda _: moment(Home(tmp_path)), range(40)))
    assert len(set(given)) == 40

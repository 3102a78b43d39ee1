import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flywheel.home import Home
from flywheel.lineage import Decision
from storage.committer import commit
from storage.inbox import Inbox
from storage.moments import moment

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


def test_many_at_once_get_moments_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda _: moment(Home(tmp_path)), range(40)))
    assert len(set(given)) == 40

"""A store of an earlier version is told as that, and brought up by a commit even of nothing."""

import pytest

from flywheel.errors import FlywheelError
from flywheel.home import Home
from storage.committer import commit
from storage.database import outdated, writing
from storage.glance import glance
from storage.inbox import Inbox
from tests.storage.store_parts import spoken


def test_a_commit_of_nothing_brings_an_old_store_up(home: Home) -> None:
    Inbox(home).append([spoken("e1")])
    commit(home)
    with writing(home, wait_s=10) as database:  # as the code before the cards left it
        database.execute("DROP TABLE cards; DROP TABLE calibrations")
        database.execute("ALTER TABLE messages DROP COLUMN key")
        database.execute("DELETE FROM migrations WHERE number > 1")
    assert outdated(home, wait_s=1)
    with pytest.raises(FlywheelError, match="run `flywheel ingest`"):
        glance(home, "shop")
    assert commit(home).traces == 0
    assert not outdated(home, wait_s=1)
    found = glance(home, "shop")
    assert found is not None and found.traces == 1

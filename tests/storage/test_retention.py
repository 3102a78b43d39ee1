"""What may be kept no longer goes, and nothing else."""

import pytest

from flywheel.data_section import RetentionSection
from flywheel.home import Home
from storage.committer import commit
from storage.inbox import Inbox
from storage.queries import traces
from storage.retention import expire, over
from tests.storage.store_parts import spoken

DAY = 86_400 * 10**9


@pytest.fixture
def kept(home: Home) -> Home:
    Inbox(home).append([
        spoken("old", question="an old question about parcels", start=DAY),
        spoken("new", question="a new question about parcels", start=9 * DAY),
        spoken("told", question="a told question about parcels", start=9 * DAY, expires=10 * DAY),
        spoken("timeless", question="a timeless question of parcels", start=None),
        spoken("sampled", question="a sampled question of parcels", start=DAY, origin="rollout"),
        spoken("elsewhere", project="other", start=DAY),
    ])  # fmt: skip
    commit(home)
    return home


def names(home: Home, **limits: float) -> set[str]:
    section = RetentionSection(**limits)  # type: ignore[arg-type]
    ids = over(home, "shop", section, now=10 * DAY)
    return {one.external_id for one in next(traces(home, ids=ids), [])}


def test_each_by_its_own_end(kept: Home) -> None:
    assert names(kept) == {"told"}
    assert names(kept, days=5) == {"told", "old"}
    assert names(kept, rollout_days=5) == {"told", "sampled"}


def test_they_are_erased_and_the_next_run_finds_nothing(kept: Home) -> None:
    section = RetentionSection(days=5)
    receipt = expire(kept, "shop", section, now=10 * DAY)
    assert receipt is not None and receipt.left == () and receipt.removed["traces"] == 2
    assert receipt.asked.startswith("retention ")
    left = {one.external_id for batch in traces(kept) for one in batch}
    assert left == {"new", "timeless", "sampled", "elsewhere"}
    assert expire(kept, "shop", section, now=10 * DAY) is None
    Inbox(kept).append([spoken("old", question="an old question about parcels", start=DAY)])
    told = commit(kept)
    assert told.traces == 0 and told.duplicates + told.refused == 1

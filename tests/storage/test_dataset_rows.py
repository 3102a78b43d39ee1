"""Looking into datasets: pages, search, dropped rows with their reasons, what differs."""

import pytest

from flywheel.errors import CorruptFile, UsageError
from flywheel.home import Home
from flywheel.lineage import Dataset
from flywheel.rows import TrainingRow
from storage.curate import RuleSpec, curate
from storage.dataset_rows import difference, dropped, page
from storage.datasets import write_dataset
from tests.storage.rows_for_curation import a_row

RULES = (RuleSpec(name="min_reward", params={"value": 1.0}),)


def written(home: Home, rows: list[TrainingRow], run: str = "run") -> Dataset:
    made = curate(rows, RULES, [], 0.7)
    return write_dataset(home, "shop", made, parents=(run,), rules=RULES)


def test_pages_go_through_all_rows_once_and_text_finds_some(home: Home) -> None:
    made = written(home, [a_row(k) for k in range(25)])
    seen = [row.id for at in (0, 10, 20) for row in page(home, made, offset=at, limit=10).rows]
    assert len(set(seen)) == len(seen) == page(home, made).total == 25
    assert seen == sorted(seen)
    found = page(home, made, text="QUESTION 17")
    assert [row.trace_id for row in found.rows] == ["trace-17"]
    assert page(home, made, text="'; DROP TABLE x; --").total == 0
    assert found.rows[0].messages[-1].text == "Question 17"


def test_dropped_rows_say_by_which_rule_and_why(home: Home) -> None:
    made = written(home, [a_row(1), a_row(2, reward=0.0), a_row(3, reward=0.5)])
    found = dropped(home, made, rule="min_reward")
    assert found.kept == {"min_reward": 2}
    assert {row.trace_id for row in found.rows} == {"trace-2", "trace-3"}
    assert all("under 1" in row.reason for row in found.rows)
    assert dropped(home, made, rule="length").rows == ()


def test_a_difference_tells_new_gone_same_and_changed(home: Home) -> None:
    from flywheel.records import say

    old = written(home, [a_row(k) for k in range(4)])
    changed = a_row(3, completion=say("assistant", "another answer"))
    new = written(home, [a_row(1), a_row(2, weight=2.0), changed, a_row(7)], "later")
    found = difference(home, new, old)
    assert (found.same, found.added, found.removed) == (2, 2, 2)
    assert (found.changed, found.reweighted) == (1, 1)
    assert {row.trace_id for row in found.added_rows} == {"trace-3", "trace-7"}
    assert {row.trace_id for row in found.removed_rows} == {"trace-0", "trace-3"}
    back = difference(home, old, new)
    assert (back.added, back.removed) == (found.removed, found.added)


def test_an_erased_dataset_and_a_damaged_one_are_told(home: Home) -> None:
    made = written(home, [a_row(1)])
    rows = home.path(made.path) / "rows.parquet"
    rows.write_bytes(b"PAR1 torn")
    with pytest.raises(CorruptFile, match="cannot be read"):
        page(home, made)
    rows.unlink()
    with pytest.raises(UsageError, match="erased or moved"):
        page(home, made)
    (home.path(made.path) / "dropped.jsonl").write_text("{torn\n")
    with pytest.raises(CorruptFile, match="dropped rows"):
        dropped(home, made)

"""Two versions beside each other: rows, rules, distributions, and the page that shows them."""

from pathlib import Path

import pytest

from flywheel.errors import CorruptFile, UsageError
from flywheel.home import Home
from flywheel.lineage import Dataset
from flywheel.records import say
from flywheel.rows import TrainingRow
from storage.curate import RuleSpec, curate
from storage.datasets import write_dataset
from storage.versions import compare, page
from tests.storage.rows_for_curation import a_row

MIN = RuleSpec(name="min_reward", params={"value": 0.5})
ONCE = RuleSpec(name="exact_duplicates")


def made(home: Home, rows: list[TrainingRow], *rules: RuleSpec) -> Dataset:
    return write_dataset(home, "support", curate(rows, rules, [], 0.7), parents=(), rules=rules)


def long(k: int) -> TrainingRow:
    return a_row(
        k,
        completion=say("assistant", f"{k} " * 400),
        tokens=None,
        slice="<i>other</i> and more words",
    )


def test_rows_rules_and_distributions_are_held_beside_each_other(tmp_path: Path) -> None:
    home = Home(tmp_path)
    before = made(home, [a_row(k, tokens=None) for k in range(60)], MIN)
    higher = RuleSpec(name="min_reward", params={"value": 1.0})
    rows = [*(a_row(k, tokens=None) for k in range(20)), *(long(k) for k in range(100, 140))]
    after = made(home, rows, higher, ONCE)
    found = compare(home, before, after)
    assert (found.rows_before, found.rows_after) == (60, 60)
    assert (found.difference.same, found.difference.added, found.difference.removed) == (20, 40, 40)
    assert [(one.rule, one.what) for one in found.rules] == [
        ("leakage", "same"), ("min_reward", "changed"), ("exact_duplicates", "added"),
    ]  # fmt: skip
    changed = found.rules[1]
    assert (changed.before, changed.after, changed.rows_after) == (
        "value=0.5",
        "value=1.0",
        (60, 60),
    )
    assert {one.column for one in found.shifted} == {"answer_tokens", "slice"}
    assert {one.column: one.reason for one in found.shifts}["source"] is not None
    shown = page(found)
    assert "…<title>&lt;i&gt;other&lt;/i&gt; and more words</title>" in shown
    assert "<i>" not in shown
    assert "http" not in shown and "<script" not in shown


def test_a_dataset_beside_itself_is_the_same(tmp_path: Path) -> None:
    home = Home(tmp_path)
    one = made(home, [a_row(k) for k in range(5)], MIN)
    found = compare(home, one, one)
    assert (found.difference.same, found.difference.added) == (5, 0) and not found.shifted
    assert {rule.what for rule in found.rules} == {"same"}
    (home.path(one.path) / "rows.parquet").unlink()
    with pytest.raises(CorruptFile, match="cannot be read"):
        compare(home, one, one)
    home.path(one.path).rename(tmp_path / "away")
    with pytest.raises(UsageError, match="is not at"):
        compare(home, one, one)

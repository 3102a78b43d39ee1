"""Datasets: rules with counts, rows kept and dropped, the report in a frame, what differs."""

from pathlib import Path

import msgspec
import pytest

from app.views.ledger_data import ledger
from flywheel.home import Home
from flywheel.lineage import Mark
from tests.app.seeing import HOSTILE, NOW, PROJECT, page, stored, two_turns, words


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_project_without_datasets_is_told_how_to_make_one(home: Home) -> None:
    home.root.mkdir()
    assert "flywheel turn FOLDER" in words(page(home, "datasets"))


@pytest.mark.slow
def test_each_part_of_a_dataset_is_shown(home: Home) -> None:
    two_turns(home)
    first = ledger(home, PROJECT).datasets[0]
    shown = page(home, "datasets", dataset=first.id)
    told = words(shown)
    assert "min_reward,7,6,1" in told and "86% of 7 candidates" in told

    def part(name: str) -> str:
        shown.segmented_control(key="datasets_part").set_value(name).run()
        return words(shown)

    kept = part("Kept")
    assert "1 to 6 of 6 rows" in kept and "answer 0" in kept
    assert "&lt;script&gt;" in kept, "the row in full is escaped"
    shown.text_input[0].set_value("question 4").run()
    assert "1 to 1 of 1 row" in words(shown)
    dropped = part("Dropped")
    assert "reward 0 is under 1" in dropped and "1 example of 1 dropped" in dropped
    differs = part("Difference")
    assert "**3** added, **3** removed, **3** the same" in differs
    assert "The same rules chose both." in differs and "**reward** alike: PSI" in differs
    assert "run" in part("Lineage")


def test_what_a_dataset_stands_on_and_has_changed_is_shown(home: Home) -> None:
    two_turns(home)
    first = ledger(home, PROJECT).datasets[0]
    mark = Mark(project=PROJECT, target_kind="dataset", target=first.id, cause="label", touched=1,
                of=6, reason=f"1 of 6 rows {HOSTILE}", retrain=True, at=NOW)  # fmt: skip
    stored(home, [msgspec.structs.replace(first, retired="a row was erased"), mark])
    shown = page(home, "datasets", dataset=first.id)
    told = words(shown)
    assert "Retired: a row was erased" in told and "a retrain would be from other rows" in told
    assert "##### rows" in told


def test_the_gate_report_can_do_nothing_in_its_frame(home: Home) -> None:
    two_turns(home)
    shown = page(home, "datasets")
    shown.segmented_control(key="datasets_part").set_value("Gate report").run()
    assert not shown.exception
    (frame,) = shown.get("iframe")
    source = frame.proto.srcdoc
    assert source.startswith('<iframe sandbox="" srcdoc="')
    assert "<script>" not in source and "&lt;script&gt;" in source
    assert HOSTILE not in source and source.count("<") == 2, "one element, closed"


def test_files_that_are_gone_are_told(home: Home) -> None:
    from flywheel.errors import UsageError
    from storage.dataset_rows import page as rows_of

    two_turns(home)
    newest = ledger(home, PROJECT).datasets[-1]
    (home.path(newest.path) / "rows.parquet").unlink()
    (home.path(newest.path) / "gate.html").unlink()
    (home.path(newest.path) / "dropped.jsonl").unlink()
    shown = page(home, "datasets")
    for name in ("Dropped", "Gate report"):
        shown.segmented_control(key="datasets_part").set_value(name).run()
        assert not shown.exception and shown.info
    with pytest.raises(UsageError, match="erased or moved away"):
        rows_of(home, newest)

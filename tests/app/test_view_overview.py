"""The overview: what serves, what needs a person, a turn followed, hostile text kept plain."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from filelock import FileLock

from app.views.charting import interval
from app.views.ledger_data import ledger, took_over, turns
from app.views.overview_charts import reward_over_time, traces_over_time
from app.views.overview_data import out_of_line, serving, waiting_candidates
from app.views.overview_needs import quarantined
from app.views.progress_data import _told, locked, progress
from flywheel.home import Home
from tests.app.conftest import SORTING
from tests.app.seeing import (
    DAY,
    HOSTILE,
    NOW,
    PROJECT,
    decided,
    deployed,
    page,
    recorded,
    two_turns,
    words,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_an_empty_home_is_told_what_to_do(home: Home) -> None:
    home.root.mkdir()
    assert "flywheel demo" in words(page(home, "overview", project=""))
    assert "flywheel serve FOLDER" in words(page(home, "overview"))


@pytest.mark.slow
def test_it_says_what_serves_since_when_and_what_waits(home: Home) -> None:
    two_turns(home)
    (home.quarantine).mkdir()
    (home.quarantine / "bad-1").write_bytes(b"x")
    (home.quarantine / "bad-1.why").write_text(json.dumps({"reason": HOSTILE}))
    shown = page(home, "overview", folder=SORTING)
    shown.segmented_control[0].set_value("All").run()
    told = words(shown)
    assert "shop-v1" in told and "promoted by flywheel turn" in told
    assert "No server runs" in told and f"flywheel serve {SORTING}" in told
    assert "waits for a person" in told
    assert "27 of 30 traces graded" in told
    assert "3 traces could not be graded" in told
    assert "1 trace that no reviewer has judged" in told
    assert "1 row could not be understood" in told
    assert "said for 0 of 30 calls" in told and "unknown" in told
    assert "turn 2" not in [str(one.value) for one in shown.subheader]


def test_text_from_outside_is_never_markup(home: Home) -> None:
    two_turns(home, last="refused")
    shown = page(home, "overview")
    for one in [*shown.markdown, *shown.caption, *shown.info, *shown.success]:
        assert "<script>" not in one.value and "](javascript" not in one.value, one.value
        assert "**bold**" not in one.value and ":red[no]" not in one.value, one.value
        assert not one.proto.allow_html


def test_a_turn_under_way_is_followed_and_a_stopped_one_waits(home: Home) -> None:
    from tasks.turns import Turn

    home.root.mkdir()
    turn = Turn(run_id="r", project=PROJECT, folder=str(SORTING), start=deployed(1),
                configuration="c", sequence=1, snapshot="s")  # fmt: skip
    home.turns.mkdir()
    (home.turns / f"{PROJECT}.json").write_bytes(msgspec.json.encode(turn))
    run = home.runs / "r"
    run.mkdir(parents=True)
    (run / "ingest.json").write_text('{"traces": 5}')
    (run / "grade.json").write_text('{"graded": 4, "not_gradable": 1}')
    (run / "problems.json").write_text(json.dumps({"train": ["p"] * 40, "heldout": ["q"] * 9}))
    (run / "steps.jsonl").write_text('{"step": "sample_chunk", "seconds": 1}\n{"torn')
    home.locks.mkdir()
    with FileLock(home.locks / f"turn-{PROJECT}.lock"):
        found = progress(home, PROJECT)
        assert found and found.alive and found.now
        assert (found.now.name, found.now.done, found.now.total) == ("rollouts", 1, 3)
        assert "Turn under way" in words(page(home, "overview"))
    found = progress(home, PROJECT)
    assert found and found.alive is False
    told = words(page(home, "overview"))
    assert "A turn was stopped while it was to sample and grade answers" in told
    assert f"flywheel turn {SORTING}" in told

    for name in ("rollouts", "dataset"):
        (run / f"{name}.json").write_text('{"rollouts": 160, "graded": 160, "rows": 41}')
    (run / "metrics.jsonl").write_text('{"step": 7, "loss": 0.5}\n{"st')
    found = progress(home, PROJECT)
    assert found and found.now
    assert (found.now.name, found.now.done, found.now.total) == ("training", 7, 18)
    (run / "grade.json").unlink()
    found = progress(home, PROJECT)
    assert found and found.now and found.now.name == "training", "`flywheel train` grades nothing"
    assert found.steps[1].state == "ahead"


def test_what_changed_under_the_model_that_serves_needs_a_look(home: Home) -> None:
    from app.commands.status_ import mark_words
    from app.views.overview_needs import needs
    from flywheel.lineage import Mark
    from storage.committer import commit
    from storage.inbox import Inbox

    two_turns(home)
    mark = Mark(project=PROJECT, target_kind="deployment", target="shop-v1", cause="feedback",
                reason="dataset 1a2b3c4d: 1 of 6 rows", touched=1, of=6, retrain=True)  # fmt: skip
    same = msgspec.structs.replace(mark, cause="grader", retrain=False)
    was = msgspec.structs.replace(mark, cause="label", settled=True)
    before = msgspec.structs.replace(mark, target="shop-v0", cause="rules")
    warned = decided("warned", "drift", "PSI", NOW + 2 * DAY, run_id="run-2")
    Inbox(home).append([mark, same, was, before, warned])
    commit(home)
    known = ledger(home, PROJECT)
    found = needs(
        home, PROJECT, SORTING, known=known, turns=turns(known), now=serving(home, PROJECT, known),
        up=None, turn=None, glance=None, acted=[], waits={},
    )  # fmt: skip
    told = [one.what for one in found if one.view == "datasets"]
    assert told == ["The drift gate warns: PSI", "shop-v1 stands on what has changed since "
                    "(feedback): dataset 1a2b3c4d: 1 of 6 rows"]  # fmt: skip
    both = [msgspec.to_builtins(one) for one in (mark, msgspec.structs.replace(mark, target="v2"))]
    assert list(mark_words(both)) == [
        "feedback: dataset 1a2b3c4d: 1 of 6 rows (deployment shop-v1, deployment v2); "
        "a retrain would be from other rows"
    ]


def test_whether_a_lock_is_held_is_asked_without_taking_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    assert locked(path) is False
    with FileLock(path):
        assert locked(path) is True
    assert locked(path) is False


def test_turns_trials_and_who_waits_come_from_the_ledger(home: Home) -> None:
    from storage.committer import commit
    from storage.inbox import Inbox

    two_turns(home)
    known = ledger(home, PROJECT)
    assert [one.name for one in turns(known)] == ["turn 1 · shop-v1", "turn 2 · shop-v2"]
    assert [one.deployment for one in waiting_candidates(known, "shop-v1")] == ["shop-v2"]
    assert waiting_candidates(known, "shop-v9") == [], "it was compared with another champion"
    now = serving(home, PROJECT, known)
    assert now and (now.deployment, now.previous) == ("shop-v1", "shop-v0")
    assert now.since and now.because and now.because.outcome == "promoted"

    asked = decided(
        "refused", "learning", "not better", NOW + 9 * DAY, by="ann", run_id="trial-1",
        evaluation_id="evaluation-run-2", deployment="shop-v2",
    )  # fmt: skip
    Inbox(home).append([asked])
    commit(home)
    known = ledger(home, PROJECT)
    assert [one.label for one in turns(known)] == ["1", "2", "trial 1"]
    assert turns(known)[-1].name == "trial 1 · shop-v2"
    assert waiting_candidates(known, "shop-v1") == []


def test_aliases_that_differ_from_the_routing_file_are_told(home: Home) -> None:
    import sqlite3

    two_turns(home)
    assert out_of_line(home, PROJECT) == "", "nothing was ever registered"
    home.mlflow.mkdir()
    (home.mlflow / "mlflow.db").write_bytes(b"no database at all, but long enough to be read")
    assert "cannot be read" in out_of_line(home, PROJECT)
    (home.mlflow / "mlflow.db").unlink()
    database = sqlite3.connect(home.mlflow / "mlflow.db")
    database.executescript(
        "CREATE TABLE model_versions (name, version, current_stage, storage_location);"
        "CREATE TABLE registered_model_aliases (name, alias, version);"
        "INSERT INTO model_versions VALUES ('shop', 1, 'None', 'x'), ('shop', 2, 'None', 'x');"
        "INSERT INTO registered_model_aliases VALUES ('shop', 'champion', 2);"
    )
    database.commit()
    database.close()
    assert out_of_line(home, PROJECT) == "champion is on version 2, it should be on version 1"


def test_the_quarantine_is_counted_and_its_reasons_are_read(home: Home) -> None:
    assert quarantined(home) == (0, [])
    home.quarantine.mkdir(parents=True)
    for k in range(3):
        (home.quarantine / f"a{k}").write_bytes(b"x")
    (home.quarantine / "a0.why").write_text('{"reason": "torn"}')
    (home.quarantine / "a1.why").write_text("{")
    assert quarantined(home) == (3, [("its reason cannot be read", 2), ("torn", 1)])


def test_intervals_do_not_collapse_where_all_are_alike() -> None:
    def of(*about: Any) -> tuple[float, float]:
        low, high = interval(*about)
        assert low is not None and high is not None
        return low, high

    assert of(1.0, 10, 0.0) == pytest.approx((0.7225, 1.0), abs=1e-3)  # Wilson's, by its formula
    assert of(0.5, 100, 0.5) == pytest.approx((0.4038, 0.5962), abs=1e-3)
    assert of(3.0, 100, 2.0) == pytest.approx((2.608, 3.392))
    assert interval(1.0, 1, None) == interval(None, 0, None) == (None, None)


@pytest.mark.slow
def test_a_commit_under_way_does_not_hold_the_page_up(home: Home) -> None:
    from storage.locks import held

    two_turns(home)
    shown = page(home, "overview")
    shown.segmented_control[0].set_value("All").run()
    before = words(shown)
    with held(home.locks / "commit.lock", wait_s=1, busy="held"):
        os.utime(home.database)  # as a commit that writes
        shown.run(timeout=240)
        assert words(shown) == before, "what was known before is shown"


def test_what_waits_in_the_inbox_is_told_without_opening_the_store(home: Home) -> None:
    from app.views import kept
    from storage.inbox import Inbox
    from storage.locks import held

    two_turns(home)
    page(home, "overview")
    Inbox(home).append(recorded(99, None, 1.0))
    with held(home.locks / "commit.lock", wait_s=1, busy="held"):
        assert kept.waiting(home) == {"segments": 1, "journal_bytes": 0}
    assert "1 segment and 0 KiB of journal wait" in words(page(home, "overview"))


def test_charts_tell_times_in_utc_by_a_clock_of_24_hours(home: Home) -> None:
    from storage.glance import glance

    two_turns(home)
    found = glance(home, PROJECT)
    assert found
    drawn = reward_over_time(found, took_over(ledger(home, PROJECT))).to_dict()
    layers = [*drawn["layer"], traces_over_time(found).to_dict()]
    assert len(layers) >= 4, "interval, line, a deployment's mark and name, traces"
    for one in layers:
        along = one["encoding"]["x"]
        assert along["scale"] == {"type": "utc"}
        assert "'%H:%M'" in along["axis"]["labelExpr"]
        told = one["encoding"].get("tooltip", [])
        assert not any(field["type"] == "temporal" for field in told), "Vega's are of its own zone"


def test_an_event_that_brought_nothing_new_counts_nothing() -> None:
    assert _told("ingest", {"traces": 0}) == "nothing new waited"
    assert _told("ingest", {"traces": 1}) == "1 trace came"
    assert _told("ingest", {}) == ""

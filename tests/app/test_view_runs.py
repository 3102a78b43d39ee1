"""Runs: curves, slices, pairs of answers that can be walked by key, configuration, the page."""

import json
from pathlib import Path

import msgspec
import pytest
from filelock import FileLock

from app.views.ledger_data import ledger, turns
from app.views.runs_data import configuration, curves, pairs
from flywheel.home import Home
from tasks.turns import Turn
from tests.app.conftest import SORTING
from tests.app.seeing import (
    DAY,
    HOSTILE,
    NOW,
    PROJECT,
    decided,
    deployed,
    page,
    stored,
    two_turns,
    words,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_project_without_runs_is_told_how_to_make_one(home: Home) -> None:
    home.root.mkdir()
    assert "flywheel turn FOLDER" in words(page(home, "runs"))


def test_each_part_of_a_run_is_shown(home: Home) -> None:
    two_turns(home)
    shown = page(home, "runs", run="run-1")
    told = words(shown)
    assert "12.5 s" in told and "3 steps; the whole turn 60.0 s" in told
    assert "overall" in told and HOSTILE in told, "its evaluation, slices by name"
    for part, seen in (
        ("Curves", "Runs"), ("Configuration", "train.rank"), ("Page", "page of run-1"),
    ):  # fmt: skip
        shown.segmented_control(key="runs_part").set_value(part).run()
        assert seen in words(shown) + " ".join(one.label for one in shown.multiselect)


def test_answers_old_against_new_are_walked_by_key(home: Home) -> None:
    two_turns(home)
    shown = page(home, "runs", run="run-2")
    shown.segmented_control(key="runs_part").set_value("Answers").run()
    told = words(shown)
    assert "won" in told and "1 of 1" in told, "one answer became right"
    assert "truth 2" in told and "reward 0.000" in told and "reward 1.000" in told
    assert "&lt;script&gt;" in told and "<script>" not in "".join(
        one.proto.body for one in shown.get("html")
    )
    shown.segmented_control(key="runs_pairs_show").set_value("All").run()
    assert "1 of 4" in words(shown)
    shown.button(key="runs_pair_next").click().run()
    assert "2 of 4" in words(shown)
    shown.button(key="runs_pair_back").click().run().button(key="runs_pair_back").click().run()
    assert "4 of 4" in words(shown)


def test_curves_are_thinned_and_keep_their_end(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    two_turns(home)
    monkeypatch.setattr("app.views.runs_data.MOST_POINTS", 2)
    made = turns(ledger(home, PROJECT))
    panels = {one.title: one.points for one in curves(home, made[:1])}
    assert set(panels) == {"Loss", "Gradient norm", "Learning rate"}, "what it measured, no more"
    assert [(one.step, one.value) for one in panels["Loss"]] == [
        (1, 1.0),
        (3, pytest.approx(1 / 3)),
    ]
    assert curves(home, []) == []


def test_a_run_that_sampled_shows_its_panels_and_alarms(home: Home) -> None:
    two_turns(home)
    steps = [
        {"step": k, "loss": -0.1, "reward": 0.5, "reward/north": 0.4, "reward/south": None,
         "rl/entropy": 1.0 if k < 5 else 0.01, "rl/clipped_positive": 0.1,
         "rl/clipped_negative": 0.2, "staleness_mean": 1.5}
        for k in range(1, 12)
    ]  # fmt: skip
    path = home.runs / "run-1" / "metrics.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in steps))
    made = turns(ledger(home, PROJECT))
    panels = {one.title: {point.line for point in one.points} for one in curves(home, made)}
    assert panels["Held back"] == {"clipped, advantage above 0", "clipped, below 0"}
    assert panels["Reward by slice"] == {"north"}
    assert {"Reward", "Entropy", "Staleness", "Learning rate"} <= set(panels)
    shown = page(home, "runs", run="run-1")
    shown.segmented_control(key="runs_part").set_value("Curves").run()
    assert "entropy fell from 1.000 to 0.010 nats" in words(shown)
    assert not shown.exception


def test_pairs_say_what_changed_and_what_cannot_be_said(home: Home) -> None:
    two_turns(home)
    evaluation = turns(ledger(home, PROJECT))[1].evaluation
    assert evaluation
    found = pairs(home, PROJECT, evaluation)
    assert [one.change for one in found] == ["won", "same", "same", "same"]
    assert found[0].problem and found[0].problem.answer == "truth 2"
    assert found[0].champion and found[0].champion.reward == 0.0


def test_configurations_differ_by_dotted_key() -> None:
    one = {"train": {"rank": 8}, "curate": {"rules": [{"name": "confirmed"}, {"name": "length",
           "max_tokens": 9}]}, "a": {}}  # fmt: skip
    other = {"train": {"rank": 16}, "curate": {"rules": [{"name": "length", "max_tokens": 9}]}}
    assert configuration(one, other) == [
        ("a", "none", "–"), ("curate.rules.confirmed", "on", "–"), ("train.rank", "8", "16"),
    ]  # fmt: skip
    assert ("curate.rules.length.max_tokens", "9", "") in configuration(one, None)


def test_a_turn_under_way_is_not_told_as_ended_by_the_gate_that_let_it_through(home: Home) -> None:
    two_turns(home)
    stored(home, [decided("passed", "data", "5 rows", NOW + 9 * DAY, run_id="run-3")])
    told = words(page(home, "runs", run="run-3"))
    assert "unfinished" in told and "it passed the data gate last" in told
    assert "data gate passed: 5 rows" in told and "by the data gate" not in told

    turn = Turn(run_id="run-3", project=PROJECT, folder=str(SORTING), start=deployed(1),
                configuration="c", sequence=1, snapshot="s")  # fmt: skip
    home.turns.mkdir(exist_ok=True)
    (home.turns / f"{PROJECT}.json").write_bytes(msgspec.json.encode(turn))
    folder = home.runs / "run-3"
    folder.mkdir()
    for name in ("ingest", "grade", "problems", "rollouts", "dataset"):
        (folder / f"{name}.json").write_text("{}")
    assert "stopped" in words(page(home, "runs", run="run-3")), "no process holds it"
    home.locks.mkdir(exist_ok=True)
    with FileLock(home.locks / f"turn-{PROJECT}.lock"):
        told = words(page(home, "runs", run="run-3"))
        assert "under way" in told and "training" in told and "unfinished" not in told
        assert "under way: training" in words(page(home, "overview"))
    assert "by the person gate" in words(page(home, "runs", run="run-2"))

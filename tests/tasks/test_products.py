"""Products that people ask for, of what a real store has, and made again from their manifests."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.commands.datasets_ import command
from flywheel.errors import Refused, UsageError
from flywheel.home import Home
from flywheel.lineage import Dataset, RuleCount
from flywheel.records import Problem, say
from flywheel.settings import Settings
from storage.dataset_records import found
from storage.datasets import manifest_of, read_dataset, verified, write_dataset
from storage.queries import problems, records
from tasks.curate import heldout_of, taken
from tasks.products import Chosen, judged, make, turn_for
from tasks.rebuild import rebuild
from tests.storage.rows_for_curation import a_row
from tests.tasks.test_preferences import ENVIRONMENT, graded, put, reviewed, trace

PROJECT = """
name = "desk"
model.base = "base"
environment.path = "environment.py:Desk"
[curate]
sources = ["recorded"]
min_rows = 2
[[curate.rules]]
name = "fidelity"
accept = ["trainable", "renderable"]
[[curate.rules]]
name = "min_reward"
value = 1.0
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    place = Settings().at()
    place.root.mkdir()
    (tmp_path / "environment.py").write_text(ENVIRONMENT)
    (tmp_path / "flywheel.toml").write_text(PROJECT)
    return place


def problem(k: int, split: str = "train") -> Problem:
    return Problem(environment="desk", messages=(say("user", f"posed {k} {split}"),), answer=str(k),
                   text=f"posed {k} {split}", split=split)  # type: ignore[arg-type]  # fmt: skip


def filled(home: Home) -> None:
    put(
        home,
        *(trace(f"t{k}", f"ask number {k} of many", f"answer {k}") for k in range(6)),
        *(graded(f"t{k}", float(k != 5)) for k in range(6)),
        reviewed("t0", "accepted"), reviewed("t1", "rejected"),
        reviewed("t2", "corrected", "better"),
        *(problem(k) for k in range(3)), problem(9, "heldout"),
    )  # fmt: skip


def made(home: Home, tmp_path: Path, product: Any) -> Dataset:
    said = make(str(tmp_path), product)
    assert said["product"] == product
    return found(home, said["id"])


@pytest.mark.slow
def test_each_product_is_made_of_what_the_store_has(home: Home, tmp_path: Path) -> None:
    filled(home)
    rows = made(home, tmp_path, "rows")
    assert rows.gate_passed and rows.gate_report and rows.product == "rows" and not rows.parents
    # No turn was there yet: what the split holds out is held out all the same.
    apart = {one.trace_id for one in problems(home, split="heldout")} - {None}
    assert apart & {f"t{k}" for k in range(5)}
    assert {row.completion.text for row in read_dataset(home, rows)} == {
        f"answer {k}" for k in range(5) if f"t{k}" not in apart
    }
    pairs = read_dataset(home, made(home, tmp_path, "preferences"))
    assert {(row.label, row.completion.text) for row in pairs} == {
        ("chosen", "better"), ("rejected", "answer 2"),
    }  # fmt: skip
    verdicts = made(home, tmp_path, "calibration")
    assert {(row.completion.text, row.label) for row in read_dataset(home, verdicts)} == {
        ("answer 0", "desirable"), ("answer 1", "undesirable"), ("answer 2", "undesirable"),
    }  # fmt: skip
    assert verdicts.gate_passed is None
    posed = read_dataset(home, made(home, tmp_path, "problems"))
    assert {row.truth for row in posed} >= {'"0"', '"1"', '"2"'}
    asked = read_dataset(home, made(home, tmp_path, "evaluation"))
    assert {row.text for row in asked} >= {"posed 9 heldout"}
    assert {row.environment for row in asked} == {"desk"}
    assert not {row.text for row in asked} & {row.text for row in posed}
    decided = records(home, "decision", project="desk")
    assert {one.run_id for one in decided} == {None}
    assert {one.evidence["dataset"] for one in decided if one.gate == "data"} >= {rows.id}
    assert not home.runs.exists() or not any(home.runs.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("touches", [False, True])
def test_what_touches_a_held_out_problem_is_refused_after_it_was_written_too(
    home: Home, tmp_path: Path, touches: bool
) -> None:
    held = problem(9, "heldout")
    put(home, held)
    turn = turn_for(str(tmp_path), "rows")
    rows = [a_row(k, text=f"an order {k} of mine that never came") for k in range(3)]
    rows += [a_row(9, text=held.text)] * touches
    chosen = taken(turn, rows, RuleCount(rule="none", rows_in=len(rows), rows_out=len(rows)))
    dataset = write_dataset(home, "desk", chosen, parents=(), rules=())
    said = judged(turn, dataset, Chosen(chosen, (), heldout_of(turn)))
    assert said["passed"] is not touches
    assert (f"trace trace-9 leaks {held.id}" in said["reason"]) is touches
    told = {one.gate: one.outcome for one in records(home, "decision")}
    assert told["leakage"] == told["data"] == ("refused" if touches else "passed")


@pytest.mark.slow
def test_what_came_since_changes_nothing_of_what_is_rebuilt(
    home: Home, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    filled(home)
    first = made(home, tmp_path, "rows")
    assert made(home, tmp_path, "rows").id == first.id, "made again it is the same"
    several = [first, *(made(home, tmp_path, one) for one in ("calibration", "problems"))]
    put(home, trace("late", "asked later on", "late"), graded("late", 1.0), problem(77))
    put(home, graded("t5", 1.0, grader="another version"), reviewed("late", "accepted"))
    changed = PROJECT.replace("value = 1.0", "value = 0.0").replace("min_rows = 2", "min_rows = 20")
    (tmp_path / "flywheel.toml").write_text(changed)
    for dataset in several:
        said = rebuild(dataset)
        assert said["same"] and not said["restored"] and said["rebuilt"] == said["content"], said
    capfd.readouterr()
    assert command.main(["make", str(tmp_path), "--json"], standalone_mode=False) == 3
    now = json.loads(capfd.readouterr().out)
    assert now["rows"] == 6 and now["gate_passed"] is False and "at least 20" in now["reason"]


@pytest.mark.slow
def test_a_damaged_file_is_put_back_and_what_is_different_is_told(
    home: Home, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    filled(home)
    dataset = made(home, tmp_path, "rows")
    (home.path(dataset.path) / "rows.parquet").write_bytes(b"torn")
    capfd.readouterr()
    assert command.main(["rebuild", dataset.id[:8]], standalone_mode=False) is None
    told = capfd.readouterr().out
    assert told.startswith("the same, bit for bit: 4 rows") and "its file was put back" in told
    assert verified(home, dataset).rows == 4 and not any(home.pools.iterdir())
    put(home, graded("t0", 0.5, at=5))
    said = rebuild(dataset)
    assert (said["same"], said["missing"], said["added"]) == (False, 1, 0)
    assert "given anew" in said["why"][0]
    (tmp_path / "environment.py").write_text(ENVIRONMENT + "\n# changed\n")
    assert "environment's code is another one" in rebuild(dataset)["why"][0]
    with pytest.raises(Refused, match="was retired: erased"):
        rebuild(msgspec.structs.replace(dataset, retired="erased"))
    path = home.path(dataset.path) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"recipe": None}))
    assert manifest_of(home, dataset).recipe is None
    with pytest.raises(UsageError, match="does not say what it was made of"):
        rebuild(dataset)

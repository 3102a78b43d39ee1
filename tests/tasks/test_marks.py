"""What is said, labelled or graded later marks what was made of it before."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel.home import Home
from flywheel.lineage import Checkpoint, Dataset, Deployment, Mark, Run
from flywheel.records import Grade, Problem, say
from flywheel.reviews import NAME
from storage.datasets import write_dataset
from storage.judgements import grades
from storage.pool import Pool
from storage.queries import problems, records
from tasks.changes import follow_changes
from tasks.products import choose_rows
from tasks.recipes import recipe_of
from tasks.turns import turn_to_come
from tests.storage.test_released import drawn
from tests.tasks.test_looks import FILE, SOURCE, look, right, store, write_project

pytestmark = pytest.mark.slow
RULES = """[curate]
sources = ["recorded"]
[[curate.rules]]
name = "min_reward"
value = 1.0
"""


def project(tmp_path: Path) -> Path:
    folder = write_project(tmp_path / "support")
    (folder / "flywheel.toml").write_text(FILE + RULES)
    return folder


def made(home: Home, folder: Path) -> Dataset:
    """A dataset of what is recorded, and a deployment that was trained on it."""
    turn = turn_to_come(str(folder))
    with Pool() as pool:
        chosen = choose_rows(turn, "rows", [], pool)
        dataset = write_dataset(
            home, "support", chosen.made, parents=("run",), rules=chosen.rules,
            recipe=recipe_of(turn, chosen.heldout),
        )  # fmt: skip
    store(
        home,
        msgspec.structs.replace(dataset, gate_passed=True),
        Run(id="run", project="support", algorithm="rejection", base_model="base",
            champion="support-v0", snapshot="s", dataset_id=dataset.id),
        Checkpoint(id="point", run_id="run", kind="adapter", path="runs/run/adapter", steps=1),
        Deployment(name="support-v1", project="support", version=1, base_model="base",
                   checkpoint_id="point", run_id="run"),
    )  # fmt: skip
    return dataset


def follow(folder: Path) -> dict[str, Any]:
    look(folder)
    found: dict[str, Any] = follow_changes.fn(str(folder))
    return found


def told(home: Home) -> set[tuple[str, str, str, int, bool | None]]:
    marks: list[Mark] = records(home, "mark", project="support")
    return {
        (one.target_kind, one.target, one.cause, one.touched, one.retrain)
        for one in marks
        if not one.settled
    }


def test_marks_follow_what_is_said_graded_and_ruled_later_and_settle_when_it_is_taken_back(
    home: Home, tmp_path: Path
) -> None:
    folder = project(tmp_path)
    here = {one: drawn(one, "support-v0", 1.0) for one in "abc"}
    store(home, *here.values(), *(right(one, one, 1) for one in "ab"))
    look(folder)
    dataset = made(home, folder)
    assert dataset.rows == 2 and follow(folder) == {"graded_again": 0, "marks": [], "told": False}

    store(home, right("a", "another", 2))
    found = follow(folder)
    built = [("dataset", dataset.id), ("checkpoint", "point"), ("deployment", "support-v1")]
    assert told(home) == {(*one, "feedback", 1, True) for one in built}
    assert found["marks"][0]["reason"] == (
        f"dataset {dataset.id[:8]}: 1 of 2 rows are graded otherwise since more was said of them; "
        "curated again it has 0 other rows, and 1 of these not"
    )
    assert follow(folder) == found and len(records(home, "mark")) == 3
    judged = msgspec.structs.replace(
        right("b", "another", 4), target=here["b"].id, target_kind="trace", name=NAME,
        attributes={"verdict": "corrected"},
    )  # fmt: skip
    store(home, right("a", "a", 3), judged)
    follow(folder)
    assert told(home) == {(*one, "label", 1, True) for one in built}
    withdrawn = msgspec.structs.replace(
        judged, at=5, kind="text", value=None, attributes={"verdict": "withdrawn"}
    )
    store(home, withdrawn)
    assert follow(folder)["marks"] == [] and told(home) == set()

    halved = SOURCE.replace("answer == problem.answer", "0.5 * (answer == problem.answer)")
    (folder / "environment.py").write_text(halved)
    follow(folder)
    assert told(home) == {(*one, "grader", 2, True) for one in built}
    (folder / "environment.py").write_text(SOURCE)
    follow(folder)
    assert told(home) == set()

    (folder / "flywheel.toml").write_text(FILE + RULES + "[[curate.rules]]\nname='confirmed'\n")
    follow(folder)
    assert told(home) == set(), "another rule that lets the same rows through changes nothing"
    (folder / "flywheel.toml").write_text(FILE + RULES.replace("1.0", "2.0"))
    follow(folder)
    assert told(home) == {(*one, "rules", 2, True) for one in built}


def test_rollouts_of_a_problem_whose_answer_is_corrected_are_graded_again(
    home: Home, tmp_path: Path
) -> None:
    folder = project(tmp_path)
    asked = drawn("a", "support-v0", 1.0)
    store(home, asked, right("a", "a", 1))
    look(folder)
    follow(folder)
    from tasks.mine import mined
    from tasks.turns import project_of

    turn = turn_to_come(str(folder))
    (problem,) = mined(project_of(turn), turn.sequence)
    sampled = msgspec.structs.replace(
        drawn("r", "support-v0", 1.0), origin="rollout", problem_id=problem.id, run_id="run"
    )
    other = Problem(environment="Support", messages=(say("user", "else"),), answer="x")
    grade = Grade(trace_id=sampled.id, reward="right", value=1.0, problem_id=problem.id, at=1)
    store(home, problem, other, sampled, grade)
    store(home, right("a", "r", 2))
    assert follow(folder)["graded_again"] == 1
    assert {one.id: one.answer for one in problems(home)}[problem.id] == "r"
    (now,) = grades(home, trace_ids=[sampled.id])
    assert now.value == 1.0
    store(home, right("a", "b", 3))
    follow(folder)
    (now,) = grades(home, trace_ids=[sampled.id])
    assert now.value == 0.0

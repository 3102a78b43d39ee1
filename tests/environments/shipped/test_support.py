import json
from pathlib import Path

import pytest

from environments.golden import trace_of
from environments.grading import Item, grade_all, score
from environments.load import load_environment
from environments.shipped.support import customers
from environments.shipped.support.environment import Inbox, Support
from flywheel.project import load_project
from flywheel.records import Problem

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    read = Support().problems()
    assert not read.rejects
    return list(read.problems)


def test_its_problems_are_the_scripted_customers_and_partners_are_held_out(
    problems: list[Problem],
) -> None:
    sent = {one.conversation: one for one in customers.messages(400)}
    assert len(problems) > 360
    for problem in problems:
        message = sent[problem.conversation or ""]
        assert (problem.answer, problem.text) == (message.truth, message.text)
        assert (problem.slice == "partner") is (message.family == "partner")
        assert not (problem.slice == "partner" and problem.split == "train")
    assert {one.split for one in problems} == {"train", "heldout"}


def test_another_seed_makes_others(problems: list[Problem]) -> None:
    other = Support({"tasks": {"kind": "made", "limit": 20, "seed": 7}})
    found = list(other.problems().problems)
    assert 15 < len(found) <= 20
    assert not {one.id for one in found} & {one.id for one in problems}


def test_gold_scores_full_marks_and_near_misses_nothing(problems: list[Problem]) -> None:
    support, some = Support(), problems[:40]
    gold = [Item(trace_of(one, support.gold(one) or ""), one) for one in some]
    assert [score(grades) for grades in grade_all(support, gold)] == [1.0] * len(some)
    wrong = [Item(trace_of(one, said), one) for one in some for said in support.wrong(one)]
    assert {score(grades) for grades in grade_all(support, wrong)} == {0.0}


def test_the_examples_project_learns_from_traffic_with_the_same_rewards() -> None:
    project = load_project(ROOT / "examples" / "support")
    inbox = load_environment(project.environment.path, project.folder, project.environment.config)
    assert type(inbox) is Inbox and inbox.tasks is None
    assert list(inbox.problems().problems) == []
    assert [one.name for one in inbox.methods] == [one.name for one in Support().methods]
    assert inbox.name == Support.name == "support"


def test_a_file_of_problems_may_stand_instead(tmp_path: Path) -> None:
    row = {"prompt": "Where is order A1000?", "answer": {"queue": "delivery", "order": "A1000"}}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))
    (one,) = Support({"tasks": {"path": str(tmp_path / "mine.jsonl")}}).problems().problems
    assert one.answer["order"] == "A1000" and one.slice == "with order"

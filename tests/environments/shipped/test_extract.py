import json
import re
from typing import Any

import pytest

from environments.golden import trace_of
from environments.grading import Item, grade_all, score
from environments.shipped.extract.environment import Extract, parsed
from environments.shipped.extract.statement import FIELDS, TRAPS, statements
from flywheel.records import Problem


@pytest.fixture(scope="module")
def extract() -> Extract:
    return Extract({"tasks": {"kind": "made", "limit": 36, "near_duplicate": None}})


@pytest.fixture(scope="module")
def problems(extract: Extract) -> list[Problem]:
    return list(extract.problems().problems)


def told(extract: Extract, one: Problem, figures: Any) -> dict[str, float | None]:
    said = figures if isinstance(figures, str) else json.dumps(figures)
    (grades,) = grade_all(extract, [Item(trace_of(one, said), one)])
    return {grade.reward: grade.value for grade in grades}


def test_statements_state_their_truth_and_every_trap_is_in_its_text() -> None:
    for one in statements(60, 3):
        numbers = {int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", one.text)}
        for field in FIELDS:
            value = abs(one.truth[field])
            assert value // one.unit in numbers or value in numbers, (one.trap, field)
        assert ("restated" in one.text) is (one.trap in ("restated", "mixed"))
        assert (one.unit > 1) is (one.trap in ("units", "mixed"))
        assert (one.truth["net_profit"] < 0) is (one.trap in ("loss", "mixed"))
        assert set(one.truth) == set(FIELDS)


def test_gold_scores_full_marks_and_who_falls_for_a_trap_little(
    extract: Extract, problems: list[Problem]
) -> None:
    assert {one.slice for one in problems} == set(TRAPS)
    assert {one.split for one in problems} == {"train", "heldout"}
    gold = [Item(trace_of(one, str(extract.gold(one))), one) for one in problems]
    assert {score(grades) for grades in grade_all(extract, gold)} == {1.0}
    wrong = [Item(trace_of(one, said), one) for one in problems for said in extract.wrong(one)]
    worth = [score(grades) for grades in grade_all(extract, wrong)]
    assert all(value is not None and value < 0.3 for value in worth) and len(worth) > 150


def test_each_field_is_told_apart_and_the_share_is_a_step_reward(
    extract: Extract, problems: list[Problem]
) -> None:
    one = next(one for one in problems if one.slice == "restated")
    found = told(extract, one, one.attributes["mistakes"]["restated"])
    assert found["prior_revenue_right"] == 0.0 and found["revenue_right"] == 1.0
    assert found["complete"] == 0.0 and found["fields"] == found["fields_at"] == 7 / 8


def test_tolerance_forgives_rounding_and_never_a_sign(
    extract: Extract, problems: list[Problem]
) -> None:
    one = next(one for one in problems if one.slice == "units")
    unit = one.attributes["unit"]
    truth: dict[str, float] = one.answer
    assert told(extract, one, truth | {"revenue": truth["revenue"] + unit / 2})["complete"] == 1.0
    assert told(extract, one, truth | {"revenue": truth["revenue"] * 1.01})["revenue_right"] == 0.0
    exact = Extract({"tolerance": 0})
    assert told(exact, one, truth | {"revenue": truth["revenue"] + unit})["revenue_right"] == 0.0
    assert not extract.near(-1, 0.4, one) and not extract.near(True, 1, one)
    assert not extract.near(float("nan"), 1, one) and not extract.near("5", 5, one)


def test_an_answer_is_one_object_whole_or_in_one_code_block() -> None:
    assert parsed('{"a": 1}') == parsed('Here:\n```json\n{"a": 1}\n```') == {"a": 1}
    for text in ("[1]", "a: 1", "", "```json\n{}\n``` and ```json\n{}\n```", "[" * 100_000):
        assert parsed(text) == {}


def test_another_key_or_a_missing_one_is_not_complete(
    extract: Extract, problems: list[Problem]
) -> None:
    one = problems[0]
    more = told(extract, one, {**one.answer, "note": 1})
    assert (more["complete"], more["fields"]) == (0.0, 1.0)
    less = told(extract, one, {key: one.answer[key] for key in FIELDS[:4]})
    assert (less["complete"], less["fields"]) == (0.0, 0.5)

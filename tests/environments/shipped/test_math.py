from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from environments.golden import trace_of
from environments.grading import Item, grade_all, score
from environments.shipped.math.environment import Math
from environments.shipped.math.numbers import final_number, marked

PROBLEMS = Path(__file__).resolve().parents[4] / "shared" / "problems"
GSM = '{"question": "Ann has 2 pens and buys %d. How many?", "answer": "2+%d\\n#### %d"}\n'


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 70,000", "70000"),
        ("so 12\n#### -3", "-3"),
        ("#### $1,234.50", "1234.5"),
        (r"it is \boxed{\frac{3}{4}}", "3/4"),
        (r"\boxed{\$ 1{,}000}", None),
        ("The answer is 1 1/2.", "3/2"),
        ("The final answer is: **42** apples", "42"),
        ("the answer is 5 + 3 = 8", "8"),
        ("First 3, then 4, so 12.", "12"),
        ("about −7", "-7"),
        ("5% of it", "5"),
        ("x^2 + 1e3", "1000"),
        ("#### 5 km/h", "5"),
        ("#### 5 or 6", None),
        ("The answer is 4.\n#### 6", "6"),
        ("#### none", None),
        ("H2O", None),
        ("1/0", None),
        ("", None),
        ("9" * 61, None),
        ("\n" * 50_000 + "####", None),
    ],
)
def test_the_final_number_is_read_as_people_write_it(text: str, number: str | None) -> None:
    assert final_number(text) == (None if number is None else Fraction(number))


def test_the_form_is_a_last_line_of_mark_and_number() -> None:
    assert marked("so\n#### 5") and marked("#### 5\n")
    assert not marked("5") and not marked("#### 5\nI hope") and not marked("#### 5 or 6")


def test_gold_scores_full_marks_and_near_misses_nothing() -> None:
    math = Math({"tasks": {"kind": "made", "limit": 32}})
    some = list(math.problems().problems)
    assert {one.slice for one in some} == {"words", "arithmetic"}
    assert {one.split for one in some} == {"train", "heldout"} and some[0].messages[
        0
    ].role == "system"
    gold = [Item(trace_of(one, math.gold(one) or ""), one) for one in some]
    assert {score(grades) for grades in grade_all(math, gold)} == {1.0}
    wrong = [Item(trace_of(one, said), one) for one in some for said in math.wrong(one)]
    assert {score(grades) for grades in grade_all(math, wrong)} == {0.0}


def test_solutions_of_made_problems_add_up() -> None:
    for one in Math({"tasks": {"kind": "made", "limit": 80}}).problems().problems:
        for line in one.attributes["solution"].splitlines():
            left, _, right = line.rpartition("=")
            assert eval(left) == int(right), line
        assert line.endswith(f"= {one.answer}") and int(one.answer) == Fraction(one.answer)


def test_gsm8k_is_held_out_however_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(GSM % (k, k, k + 2) for k in range(1, 9)))
    beside = Math({"gsm8k": str(path), "tasks": {"kind": "made", "limit": 20}})
    found = list(beside.problems().problems)
    assert {one.split for one in found if one.slice == "gsm8k"} == {"heldout"}
    assert {one.split for one in found} == {"train", "heldout"}
    sets: list[dict[str, Any]] = [{"path": str(path)}, {"path": str(path), "kind": "gsm8k"}]
    for tasks in sets:
        read = Math({"tasks": tasks | {"options": {"own_split": False}}}).problems()
        assert [one.split for one in read.problems] == ["heldout"] * 8


def test_the_benchmarks_own_solutions_score_full_marks() -> None:
    path = PROBLEMS / "gsm8k_shared.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path}")
    math = Math({"tasks": {"path": str(path)}})
    some = list(math.problems().problems)
    gold = [Item(trace_of(one, math.gold(one) or ""), one) for one in some]
    assert len(some) == 300 and {score(grades) for grades in grade_all(math, gold)} == {1.0}

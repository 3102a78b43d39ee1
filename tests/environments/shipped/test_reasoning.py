from typing import Any

import pytest

from environments.golden import trace_of
from environments.grading import Item, grade_all, score
from environments.shipped.reasoning.environment import Reasoning, verified
from flywheel.records import Problem

pytest.importorskip("reasoning_gym", reason="`make install-reasoning` brings reasoning-gym")

CHOSEN = {"chain_sum": {"max_terms": 3}, "spell_backward": {}, "propositional_logic": {}}


def reasoning(**tasks: Any) -> tuple[Reasoning, list[Problem]]:
    options = {"tasks": CHOSEN, "items": 3}
    asked = {"kind": "reasoning_gym", "near_duplicate": None, "options": options, **tasks}
    made = Reasoning({"tasks": asked})
    return made, list(made.problems().problems)


def told(made: Reasoning, one: Problem, said: str) -> dict[str, float | None]:
    (grades,) = grade_all(made, [Item(trace_of(one, said), one)])
    return {grade.reward: grade.value for grade in grades}


def test_gold_scores_full_marks_and_wrong_answers_nothing() -> None:
    made, some = reasoning(heldout_share=1)
    assert {one.slice for one in some} == set(CHOSEN) and len(some) == 9
    known = [(one, made.gold(one)) for one in some]
    gold = [Item(trace_of(one, said), one) for one, said in known if said]
    assert {score(grades) for grades in grade_all(made, gold)} == {1.0} and len(gold) >= 6
    wrong = [Item(trace_of(one, said), one) for one in some for said in made.wrong(one)]
    assert {score(grades) for grades in grade_all(made, wrong)} == {0.0}


def test_partial_credit_is_shown_and_not_rewarded() -> None:
    made, some = reasoning(options={"tasks": {"spell_backward": {}}, "items": 3}, heldout_share=1)
    one = max(some, key=lambda one: len(one.answer))
    near = told(made, one, f"<answer>{one.answer[:-1]}x</answer>")
    assert near["solved"] == 0.0 and 0 < (near["credit"] or 0) < 1 and near["in_form"] == 1.0
    untagged = told(made, one, one.answer)
    assert untagged["solved"] == 1.0 and untagged["in_form"] == 0.0


def test_a_problem_without_an_answer_is_judged_all_the_same() -> None:
    made, some = reasoning(
        options={"tasks": {"propositional_logic": {}}, "items": 6}, heldout_share=1
    )
    assert all(one.answer is None for one in some)
    one = next(one for one in some if made.gold(one))
    assert told(made, one, str(made.gold(one)))["solved"] == 1.0
    assert told(made, one, "<answer>who knows</answer>")["solved"] == 0.0


def test_an_answer_on_which_the_verifier_fails_is_wrong() -> None:
    made, (one,) = reasoning(
        options={"tasks": {"prime_factorization": {}}, "items": 1}, heldout_share=1
    )
    assert verified("no number at all", one) == 0.0
    assert told(made, one, str(made.gold(one)))["solved"] == 1.0

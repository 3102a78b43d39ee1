import json
from pathlib import Path
from typing import Any

import pytest

from environments.golden import trace_of
from environments.grading import Item, grade_all, score
from environments.shipped.tools.calls import made, right, why_not
from environments.shipped.tools.environment import Tools
from environments.shipped.tools.made import CATEGORIES
from flywheel.errors import ProjectError
from flywheel.records import Message, Problem, ToolCall, say

PROBLEMS = Path(__file__).resolve().parents[4] / "shared" / "problems"


def problems(**config: Any) -> list[Problem]:
    read = Tools(config).problems()
    assert not read.rejects
    return list(read.problems)


def scores(environment: Tools, answers: list[tuple[Problem, Any]]) -> list[float | None]:
    items = [Item(trace_of(one, said), one) for one, said in answers]
    return [score(grades) for grades in grade_all(environment, items)]


def test_made_problems_are_of_all_categories_and_the_same_by_seed() -> None:
    some = problems(tasks={"kind": "made", "limit": 50})
    assert {one.slice for one in some} == set(CATEGORIES)
    assert {one.split for one in some} == {"train", "heldout"}
    more = {one.id for one in problems(tasks={"kind": "made", "limit": 60})}
    assert len({one.id for one in some} - more) <= 1  # one whose words a later held-out one has
    assert all((one.slice == "irrelevance") is (one.answer == []) for one in some)
    parallel = problems(categories=["parallel"], tasks={"kind": "made", "limit": 10})
    assert {one.slice for one in parallel} == {"parallel"}
    with pytest.raises(ProjectError, match="some of simple"):
        Tools({"categories": ["paralel"]})


def test_gold_scores_full_marks_and_near_misses_nothing() -> None:
    tools, some = Tools(), problems(tasks={"kind": "made", "limit": 25})
    assert set(scores(tools, [(one, tools.gold(one)) for one in some])) == {1.0}
    wrong = [(one, said) for one in some for said in tools.wrong(one)]
    assert set(scores(tools, wrong)) == {0.0} and len(wrong) > 50


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"}, "x": {"type": "number"}, "city": {"type": "string"},
        "on": {"type": "boolean"}, "tags": {"type": "array"}, "box": {"type": "object"},
    },
    "required": ["n"],
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]


def why(given: Any, **allowed: list[Any]) -> str | None:
    arguments = given if isinstance(given, str) else json.dumps(given)
    call = ToolCall(name="f", arguments=arguments)
    return why_not(call, {"name": "f", "arguments": allowed}, TOOLS)


def test_arguments_are_compared_as_the_benchmark_compares_them() -> None:
    assert why({"n": 5}, n=[5]) is None
    assert why({"n": 5, "x": 2}, n=[5], x=[2.0]) is None
    assert why({"n": 5, "city": "new-york, NY"}, n=[5], city=["New York NY"]) is None
    assert why({"n": 5}, n=[5], city=["", "Oslo"]) is None
    assert why({"n": 5, "tags": ["A", 2]}, n=[5], tags=[["a", 2]]) is None
    assert why({"n": 5, "box": {"w": 1}}, n=[5], box=[{"w": [1, 2], "h": ["", 3]}]) is None
    for expected, given, allowed in (
        ("n is missing", {}, {"n": [5]}),
        ("n is float, not integer", {"n": 5.0}, {"n": [5]}),
        ("n is bool", {"n": True}, {"n": [1]}),
        ("n has another value", {"n": 6}, {"n": [5]}),
        ("x is not asked for", {"n": 5, "x": 1}, {"n": [5]}),
        ("city is missing", {"n": 5}, {"n": [5], "city": ["Oslo"]}),
        ("tags has another", {"n": 5, "tags": ["b", "a"]}, {"n": [5], "tags": [["a", "b"]]}),
        ("box has another", {"n": 5, "box": {"w": 9}}, {"n": [5], "box": [{"w": [1]}]}),
        ("no JSON", "{n: 5", {"n": [5]}),
        ("no object", "[5]", {"n": [5]}),
    ):
        assert expected in (why(given, **allowed) or ""), expected


def test_calls_are_given_out_so_that_the_most_are_right() -> None:
    wanted = [{"name": "f", "arguments": {"n": [1, 2]}}, {"name": "f", "arguments": {"n": [1]}}]
    calls = [ToolCall(name="f", arguments=f'{{"n": {n}}}') for n in (1, 2, 1)]
    assert right(calls[:2], wanted, TOOLS) == [True, True]
    assert right(calls[:2][::-1], wanted, TOOLS) == [True, True]
    assert sorted(right(calls, wanted, TOOLS)) == [False, True, True]


def test_calls_that_a_model_wrote_as_text_count_where_they_are_all_of_it() -> None:
    call = '{"name": "f", "arguments": {"n": 5}}'
    for text in (call, f"[{call}]", f"<tool_call>\n{call}\n</tool_call>"):
        assert [one.name for one in made(say("assistant", text))] == ["f"]
    for text in (f"I call {call}", "[1, 2]", "{", "", '{"name": "f"}'):
        assert made(say("assistant", text)) == []
    real = Message(role="assistant", parts=(ToolCall(name="g", arguments="{}"),))
    assert [one.name for one in made(real)] == ["g"]


def test_a_step_reward_tells_how_many_calls_were_right() -> None:
    tools = Tools()
    (one,) = problems(categories=["parallel"], tasks={"kind": "made", "limit": 1})
    gold = tools.gold(one)
    assert isinstance(gold, list)
    half = [gold[0].tool_calls[0], ToolCall(id="z", name="nothing", arguments="{}")]
    said = [Message(role="assistant", parts=tuple(half))]
    (grades,) = grade_all(tools, [Item(trace_of(one, said), one)])
    told = {grade.reward: grade.value for grade in grades}
    assert told == {"correct": 0.0, "calls_right": 0.5, "names_right": 0.0}


@pytest.mark.parametrize("name", ["simple_python", "parallel_multiple", "irrelevance"])
def test_the_benchmarks_own_truths_are_right_by_our_comparison(name: str) -> None:
    path = PROBLEMS / f"bfcl_{name}_shared.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path}")
    tools = Tools({"tasks": {"path": str(path)}})
    some = list(tools.problems().problems)
    assert set(scores(tools, [(one, tools.gold(one)) for one in some])) == {1.0} and len(some) == 60

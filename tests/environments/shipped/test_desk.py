"""The order desk: right work scores full marks, wrong work low, and a whole talk is played."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from environments.define import Environment
from environments.golden import trace_of
from environments.grading import Item, grade_all, score
from environments.harnesses.contract import Access, Episode
from environments.load import load_environment
from environments.shipped.desk import make
from flywheel.errors import ProjectError
from flywheel.records import Message, Problem, Span, Trace, say
from tests.environments.playing import play, says

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared" / "problems"
DESK = "environments.shipped.desk.environment:Desk"


@pytest.fixture(scope="module")
def desk() -> Environment:
    return load_environment(DESK, ROOT)


@pytest.fixture(scope="module")
def problems(desk: Environment) -> list[Problem]:
    read = desk.problems()
    found = list(read.problems)
    assert not read.rejects
    return found


def scores(
    environment: Environment, pairs: Sequence[tuple[Problem, str | Sequence[Message]]]
) -> list[float]:
    items = [Item(trace_of(problem, said), problem) for problem, said in pairs]
    found = [score(grades) for grades in grade_all(environment, items)]
    assert None not in found
    return [one for one in found if one is not None]


def graded(environment: Environment, problem: Problem, said: Any) -> dict[str, float | None]:
    (grades,) = grade_all(environment, [Item(trace_of(problem, said), problem)])
    return {one.reward: one.value for one in grades if one.span_id is None}


def steps(environment: Environment, problem: Problem, said: Any) -> dict[str, list[float | None]]:
    (grades,) = grade_all(environment, [Item(trace_of(problem, said), problem)])
    found: dict[str, list[float | None]] = {}
    for one in grades:
        if one.span_id is not None:
            found.setdefault(one.reward, []).append(one.value)
    return found


def named(problems: list[Problem], id: str) -> Problem:
    return next(one for one in problems if one.attributes["id"] == id)


def test_the_shipped_files_are_what_the_templates_make(tmp_path: Path) -> None:
    make.write(tmp_path)
    for name in ("database.json", "problems.jsonl"):
        assert (tmp_path / name).read_bytes() == (make.HERE / name).read_bytes()


def test_problems_have_two_sides_and_hide_what_they_ask_for(problems: list[Problem]) -> None:
    assert len(problems) == 40 and len({one.id for one in problems}) == 40
    assert {one.split for one in problems} == {"train", "heldout"}
    late = named(problems, "late_0")
    assert [message.role for message in late.messages] == ["system", "user"]
    assert "30 days" in late.messages[0].text and "30 days" not in late.messages[1].text
    assert "return_items" in {tool["function"]["name"] for tool in late.tools}


def test_gold_scores_full_marks_and_wrong_answers_low(
    desk: Environment, problems: list[Problem]
) -> None:
    golds = [(problem, desk.gold(problem) or "") for problem in problems]
    assert scores(desk, golds) == [1.0] * len(problems)
    wrong = [(problem, said) for problem in problems for said in desk.wrong(problem)]
    assert len(wrong) > len(problems)
    assert max(scores(desk, wrong)) <= 0.34


def test_a_forbidden_write_breaks_policy_and_state(
    desk: Environment, problems: list[Problem]
) -> None:
    late = named(problems, "late_1")
    trapped = graded(desk, late, desk.wrong(late)[-1])
    assert (trapped["final_state"], trapped["policy_kept"]) == (0.0, 0.0)
    assert graded(desk, late, desk.gold(late))["communicated"] == 1.0
    assert graded(desk, late, "It cannot be done.")["communicated"] == 0.0


def test_steps_say_which_calls_helped(desk: Environment, problems: list[Problem]) -> None:
    problem = named(problems, "cancel_0")
    gold = list(desk.gold(problem) or [])
    bad = desk._acted(problem, [{"name": "get_order", "arguments": {"order_id": "O0"}}] * 2, "?")  # type: ignore[attr-defined]
    found = steps(desk, problem, [*bad[:4], *gold])
    assert found["succeeded"] == [0, 0, 1, 1, 1, None]
    assert found["useful"] == [0, 0, 1, 1, 1, None]
    assert found["error_understood"] == [None, 0, 1, 1, 1, None]


def test_a_call_that_the_harness_refused_is_not_played(
    desk: Environment, problems: list[Problem]
) -> None:
    """Recorded tool spans say what was run; the model's own words only where there are none."""
    from flywheel.records import ToolCall, ToolResult

    problem = named(problems, "late_1")
    trap = problem.answer["criteria"]["traps"][0]
    call = ToolCall(name=trap["name"], arguments=json.dumps(trap["arguments"]), id="c")
    trace = trace_of(problem, [Message(role="assistant", parts=(call,)), say("assistant", "No.")])
    refused = ToolResult(content="Error: no", id="c", is_error=True)
    span = Span(id="tool-0", kind="tool", parents=("call-0",), tool=call, result=refused)
    kept = Trace(**{name: getattr(trace, name) for name in trace.__struct_fields__}
                 | {"spans": (*trace.spans, span)})  # fmt: skip
    (grades,) = grade_all(desk, [Item(kept, problem)])
    assert {one.reward: one.value for one in grades if not one.span_id}["policy_kept"] == 1.0


def acted(engine: Any, desk: Environment, problem: Problem, turns: list[Any]) -> Trace:
    """A model that says these words and makes these calls, one a turn."""
    left = iter(turns)

    def talk(messages: Any) -> Any:
        turn = next(left)
        return turn if isinstance(turn, str) else [(turn["name"], turn["arguments"])]

    engine.reply = says(talk)
    (done,) = play(desk, engine.url, [problem])
    return done.trace


def test_a_whole_talk_is_played(engine: Any, desk: Environment, problems: list[Problem]) -> None:
    """The scripted user is asked for its address, confirms, and goes satisfied."""
    problem = next(
        one for one in problems if one.slice == "cancel" and "@" not in one.messages[1].text
    )
    criteria = problem.answer["criteria"]
    find, get, cancel = criteria["actions"]
    turns = ["What is your e-mail address?", find, get, "Shall I go ahead?", cancel,
             f"Refunded: {criteria['communicate_info']}. Anything else?"]  # fmt: skip
    trace = acted(engine, desk, problem, turns)
    assert trace.attributes["ended"] == "answered: the user left"
    talk = trace.attributes["state"]["user"]
    assert (talk["ended"], talk["said"][1]) == ("satisfied", "Yes, please.")
    (grades,) = grade_all(desk, [Item(trace, problem)])
    assert score(grades) == 1.0


def test_the_same_desk_with_the_user_behind_a_tool(engine: Any, problems: list[Problem]) -> None:
    config = {"harness": {"kind": "mcp", "servers": [{"name": "user"}]}}
    desk = load_environment(DESK, ROOT, config)
    problem = named(problems, "late_0")
    find, get = problem.answer["criteria"]["actions"]
    ask = {"name": "talk_to_user", "arguments": {"message": "Your e-mail?"}}
    tell = {"name": "talk_to_user", "arguments": {"message": "Over 30 days. Anything else?"}}
    trace = acted(engine, desk, problem, [ask, find, get, tell, "Done."])
    assert trace.attributes["state"]["user"]["ended"] == "satisfied"
    (grades,) = grade_all(desk, [Item(trace, problem)])
    assert score(grades) == 1.0
    assert {one.value for one in grades if one.reward == "succeeded"} == {1.0, None}


def test_a_model_plays_the_user_where_one_is_named(engine: Any, problems: list[Problem]) -> None:
    config = {"user": {"kind": "model", "url": engine.url, "model": "actor", "goal": ""}}
    desk = load_environment(DESK, ROOT, config)
    choice = {"index": 0, "message": {"role": "assistant", "content": "It is me. [[LEAVES]]"}}
    engine.reply = lambda asked: (200, {"choices": [choice]})
    episode = Episode(desk, problems[0], Access("", "", ""), random.Random(0))
    assert asyncio.run(desk.user(episode, "Who are you?")) is None
    assert episode.state["user"]["ended"] == "left"
    assert "You are " in engine.asked[0]["messages"][0]["content"]


def test_a_database_that_is_not_there_is_named(problems: list[Problem]) -> None:
    desk = load_environment(DESK, ROOT, {"database": "nowhere.json"})
    with pytest.raises(ProjectError, match=r"config\.database .*nowhere\.json"):
        desk.gold(problems[0])


def test_a_task_of_another_domain_is_no_task_of_this_desk(problems: list[Problem]) -> None:
    board = load_environment(DESK, ROOT, {"domain": "board"})
    (grades,) = grade_all(board, [Item(trace_of(problems[0], "Done."), problems[0])])
    state = next(one for one in grades if one.reward == "final_state")
    assert state.value is None and state.reason is not None
    assert "'find_customer'" in state.reason and "config.domain is 'board'" in state.reason


@pytest.mark.skipif(not SHARED.is_dir(), reason="tau2's own tasks are not shipped")
def test_tau2s_mock_tasks_are_played_and_judged() -> None:
    tasks = {"kind": "tau2", "path": str(SHARED / "tau2_mock_tasks_shared.jsonl"),
             "heldout_share": 1,
             "options": {"policy": str(SHARED / "tau2_mock_policy.md")}}  # fmt: skip
    config = {"domain": "board", "database": str(SHARED / "tau2_mock_db.json"), "tasks": tasks}
    board = load_environment(DESK, ROOT, config)
    problems = list(board.problems().problems)
    assert len(problems) == 10
    found = {}
    for problem in problems:
        (grades,) = grade_all(board, [Item(trace_of(problem, board.gold(problem) or ""), problem)])
        found[problem.attributes["id"]] = score(grades)
    # its user has tools of its own, which are not here
    assert found.pop("update_task_with_user_tools") is None
    # judged by an assertion; no actions are stated that bring it about
    assert found.pop("update_task_with_history_and_env_assertions") == pytest.approx(0.5 / 1.5)
    assert set(found.values()) == {1.0}
    history = named(problems, "update_task_with_message_history")
    assert [one.role for one in history.messages] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    wrong = [(one, said) for one in problems for said in board.wrong(one)
             if one.attributes["id"] != "update_task_with_user_tools"]  # fmt: skip
    assert max(scores(board, wrong)) <= 0.34

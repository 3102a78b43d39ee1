"""What people, files and rewards prefer comes out of a real store as labelled rows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.records import (
    Choice,
    Feedback,
    Grade,
    Message,
    ModelCall,
    Problem,
    Span,
    Trace,
    say,
)
from flywheel.reviews import NAME
from flywheel.rows import TrainingRow
from storage.committer import commit
from storage.importer import import_path
from storage.inbox import Inbox
from tasks.candidates import candidates
from tasks.turns import Turn

ENVIRONMENT = """
from environments.define import Environment, reward


class Desk(Environment):
    @reward()
    def right(self, answer, problem):
        return answer == problem.answer
"""


@pytest.fixture
def turn_of(tmp_path: Path, home: Home) -> Any:
    """A turn of the project `desk` over what is in the store, by one algorithm."""

    def made(algorithm: str, curate: str = "") -> Turn:
        (tmp_path / "environment.py").write_text(ENVIRONMENT)
        (tmp_path / "flywheel.toml").write_text(
            'name = "desk"\nmodel.base = "base"\nenvironment.path = "environment.py:Desk"\n'
            f'[train]\nalgorithm = "{algorithm}"\n[curate]\n{curate}'
        )
        start = Deployment(name="desk-v0", project="desk", version=0, base_model="base")
        return Turn(run_id="run", project="desk", folder=str(tmp_path), start=start,
                    configuration="c", sequence=1 << 40, snapshot="s")  # fmt: skip

    return made


def put(home: Home, *records: Any) -> None:
    Inbox(home).append(list(records))
    commit(home)


def trace(name: str, asked: str, *answers: str, **changes: Any) -> Trace:
    """A recorded episode: each answer after the ones before it."""
    said: list[Message] = [say("user", asked)]
    spans = []
    for number, answer in enumerate(answers):
        call = ModelCall(
            input=tuple(said), tools=(),
            choices=(Choice(message=say("assistant", answer), finish_reason="stop"),),
        )  # fmt: skip
        spans.append(Span(id=f"call-{number}", kind="model", start=number, end=number + 1,
                          call=call))  # fmt: skip
        said += [say("assistant", answer), say("user", "go on")]
    given = Trace(id=name, project="desk", source="gateway", external_id=name,
                  origin="production", spans=tuple(spans))  # fmt: skip
    return msgspec.structs.replace(given, **changes)


def told(target: str, value: Any, **more: Any) -> Feedback:
    return Feedback(project="desk", target=target, value=value, at=1, **{"kind": "boolean"} | more)


def reviewed(target: str, verdict: str, value: Any = None, by: str = "ada") -> Feedback:
    kind = "boolean" if value is None else "demonstration"
    said = verdict == "accepted" if value is None else value
    return told(target, said, name=NAME, kind=kind, by=by, attributes={"verdict": verdict})


def graded(name: str, value: float | None, problem: Problem | None = None, **more: Any) -> Grade:
    return Grade(trace_id=name, reward="right", value=value, confirmed_by="feedback",
                 problem_id=problem.id if problem else None, **more)  # fmt: skip


def labels(rows: Sequence[TrainingRow]) -> set[tuple[str, str | None, str | None]]:
    return {(row.completion.text, row.label, row.confirmed_by) for row in rows}


def test_reviews_stand_above_feedback_and_feedback_above_rewards(home: Home, turn_of: Any) -> None:
    names = ("accepted", "rejected", "liked", "odds", "earned", "middling", "silent")
    put(
        home,
        *(trace(name, f"ask {name}", name) for name in names),
        reviewed("accepted", "accepted"),
        told("accepted", False),
        reviewed("rejected", "rejected"),
        told("liked", True),
        graded("liked", 0.0),
        told("odds", True, by="ada"),
        told("odds", False, by="bob"),
        graded("earned", 1.0),
        graded("middling", 0.7),
        told("silent", True, name="tag:nice", attributes={"review": "x"}),
    )
    rows = list(candidates(turn_of("kto")))
    assert labels(rows) == {
        ("accepted", "desirable", "human"),
        ("rejected", "undesirable", "human"),
        ("liked", "desirable", "feedback"),
        ("earned", "desirable", "feedback"),
    }
    thresholds = list(candidates(turn_of("kto", "good = 0.7\nbad = 0.1\n")))
    assert ("middling", "desirable", "feedback") in labels(thresholds)


def test_a_correction_and_a_known_answer_are_paired_with_what_was_said(
    home: Home, turn_of: Any
) -> None:
    problem = Problem(environment="desk", messages=(say("user", "2 + 2"),), answer="4",
                      truth_from="feedback")  # fmt: skip
    put(
        home,
        problem,
        trace("told", "greet", "go away"),
        reviewed("told", "corrected", {"say": "hello"}),
        trace("wrong", "2 + 2", "5"),
        graded("wrong", 0.0, problem),
        trace("right", "3 + 3", "6"),
        graded("right", 1.0),
    )
    rows = list(candidates(turn_of("dpo")))
    pairs: dict[str | None, dict[str | None, str]] = {}
    for row in rows:
        pairs.setdefault(row.pair_id, {})[row.label] = row.completion.text
    assert sorted(pairs.values(), key=str) == [
        {"chosen": "4", "rejected": "5"},
        {"chosen": '{"say": "hello"}', "rejected": "go away"},
    ]
    written = next(row for row in rows if row.completion.text == "4")
    assert (written.origin, written.tokens, written.finish_reason) == ("demonstration", None, None)


def test_good_and_bad_answers_to_one_prompt_are_paired_whatever_came_first(
    home: Home, turn_of: Any
) -> None:
    said = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0, "e": 0.0, "f": None}
    put(
        home,
        *(trace(name, "ask", f"answer {name}") for name in said),
        *(graded(name, value) for name, value in said.items()),
        trace("same", "ask", "answer a"),
        graded("same", 1.0),
    )
    rows = list(candidates(turn_of("dpo")))
    assert len({row.pair_id for row in rows}) == 2 and len(rows) == 4
    assert {row.completion.text for row in rows if row.label == "chosen"} == {
        "answer a", "answer b",
    }  # fmt: skip
    assert [row.id for row in rows] == [row.id for row in list(candidates(turn_of("dpo")))]


def test_compared_answers_are_pairs(home: Home, turn_of: Any) -> None:
    put(
        home,
        trace("a", "ask", "short"),
        trace("b", "ask", "long"),
        told("a", "worse", name="compared:b", kind="category", by="ada"),
        told("b", "better", name="compared:a", kind="category", by="ada"),
    )
    assert labels(list(candidates(turn_of("dpo")))) == {
        ("long", "chosen", "human"),
        ("short", "rejected", "human"),
    }
    assert labels(list(candidates(turn_of("reward")))) == {
        ("long", "desirable", "human"),
        ("short", "undesirable", "human"),
    }


def test_preferences_that_the_gateway_was_told_are_pairs(home: Home, turn_of: Any) -> None:
    """Between two traces, and between two answers of one response; not of two prompts."""
    three = trace("c", "again", "plain")
    call = three.spans[0].call
    assert call is not None
    better = Choice(message=say("assistant", "fancy"), finish_reason="stop")
    several = msgspec.structs.replace(call, choices=(*call.choices, better))
    span = msgspec.structs.replace(three.spans[0], id="response-c", call=several)
    put(
        home,
        trace("a", "ask", "short"),
        trace("b", "ask", "long"),
        msgspec.structs.replace(three, spans=(span,)),
        prefers("a", "b", chosen="b", rejected="a"),
        prefers("a", "c", chosen="a", rejected="c"),
        prefers(span.id, "0-1", chosen=1, rejected=0),
        prefers(span.id, "0-7", chosen=7, rejected=0),
    )
    assert labels(list(candidates(turn_of("dpo")))) == {
        ("long", "chosen", "feedback"),
        ("short", "rejected", "feedback"),
        ("fancy", "chosen", "feedback"),
        ("plain", "rejected", "feedback"),
    }
    noted = json.loads((home.runs / "run" / "stated.json").read_bytes())
    beyond = "a number beyond the answers that its response has"
    assert noted == {
        "preferences": 4,
        "left_out": {beyond: 1, "the two answer different prompts": 1},
    }


def prefers(target: str, other: str, **value: str | int) -> Feedback:
    return Feedback(
        project="desk", target=target, target_kind="span", name=f"outcome:{other}", value=value,
        kind="preference", by="ada", at=1,
    )  # fmt: skip


def test_a_preference_file_is_pairs_and_labels(home: Home, turn_of: Any, tmp_path: Path) -> None:
    pair = {"prompt": "ask", "chosen": "yes, sir", "rejected": "no"}
    label = {"messages": [{"role": "user", "content": "more"},
                          {"role": "assistant", "content": "of it"}], "label": False}  # fmt: skip
    file = tmp_path / "pairs.jsonl"
    file.write_bytes(b"\n".join(map(msgspec.json.encode, (pair, label))))
    assert import_path(home, file, project="desk").quarantined == 0
    rows = list(candidates(turn_of("dpo")))
    assert labels(rows) == {("yes, sir", "chosen", "feedback"), ("no", "rejected", "feedback")}
    assert len({row.pair_id for row in rows}) == 1
    assert labels(list(candidates(turn_of("kto")))) == {
        ("yes, sir", "desirable", "feedback"),
        ("no", "undesirable", "feedback"),
        ("of it", "undesirable", "feedback"),
    }


def test_answers_that_are_good_to_one_and_bad_to_another_teach_nothing(
    home: Home, turn_of: Any
) -> None:
    put(
        home,
        *(trace("a", "ask", "same"), told("a", True)),
        *(trace("b", "ask", "same"), told("b", False)),
        *(trace("c", "ask", "other"), told("c", True)),
    )
    assert labels(list(candidates(turn_of("kto")))) == {("other", "desirable", "feedback")}
    assert list(candidates(turn_of("dpo"))) == []


def test_each_graded_step_is_a_row_with_all_that_came_before(home: Home, turn_of: Any) -> None:
    step: dict[str, Any] = {"reward": "sound", "confirmed_by": "code"}
    put(
        home,
        trace("a", "ask", "one", "two", "three"),
        *(
            Grade(trace_id="a", value=value, span_id=f"call-{at}", **step)
            for at, value in enumerate((1.0, 0.0, None))
        ),
        graded("a", 0.0),
    )
    first, second = sorted(list(candidates(turn_of("process_reward"))), key=lambda row: row.span_id)
    assert (first.completion.text, first.label, first.reward) == ("one", "desirable", 1.0)
    assert (second.completion.text, second.label) == ("two", "undesirable")
    assert [message.text for message in second.messages] == ["ask", "one", "go on"]


def test_another_projects_answers_teach_a_reward_model(home: Home, turn_of: Any) -> None:
    said = Feedback(project="shop", target="a", value=True, kind="boolean")
    put(home, trace("a", "ask", "well said", project="shop"), said)
    assert list(candidates(turn_of("reward"))) == []
    other = list(candidates(turn_of("reward", 'answers_of = "shop"\n')))
    assert labels(other) == {("well said", "desirable", "feedback")}


def test_the_control_turns_pairs_and_deals_labels_out_anew(home: Home, turn_of: Any) -> None:
    put(
        home,
        *(trace(f"t{number}", f"ask {number // 2}", f"answer {number}") for number in range(12)),
        *(graded(f"t{number}", float(number % 2)) for number in range(12)),
    )
    plain = list(candidates(turn_of("dpo")))
    turned = list(candidates(turn_of("dpo", "shuffle_rewards = 3\n")))
    assert {row.pair_id for row in plain} == {row.pair_id for row in turned}
    for pair in {row.pair_id for row in turned}:
        assert {row.label for row in turned if row.pair_id == pair} == {"chosen", "rejected"}
    assert labels(plain) != labels(turned)


@pytest.mark.parametrize(("algorithm", "value"), [("reward", 1.0), ("process_reward", 0.0)])
def test_a_verifier_is_compared_on_pairs_of_held_out_problems_alone(
    home: Home, turn_of: Any, algorithm: str, value: float
) -> None:
    from tasks.verify import grades_of, held_out_pairs

    unseen = Problem(environment="desk", messages=(say("user", "ask"),), answer="x",
                     split="heldout")  # fmt: skip
    trained = Problem(environment="desk", messages=(say("user", "teach"),), answer="x")
    step: dict[str, Any] = {"reward": "sound", "confirmed_by": "code", "problem_id": unseen.id}
    put(
        home,
        *(unseen, trained),
        *(trace("a", "ask", "good"), graded("a", 1.0, unseen)),
        *(trace("b", "ask", "bad", "worse"), graded("b", 0.0, unseen)),
        *(trace("c", "ask", "bad"), graded("c", 0.0, unseen)),
        *(trace("d", "teach", "fine"), graded("d", 1.0, trained)),
        Grade(trace_id="a", value=1.0, span_id="call-0", **step),
        Grade(trace_id="b", value=0.0, span_id="call-1", **step),
    )
    turn = turn_of(algorithm)
    (pair,) = held_out_pairs(turn, [unseen.id])
    assert pair.good.completion.text == "good"
    assert pair.bad.completion.text == ("bad" if algorithm == "reward" else "worse")
    told = trace("e", "ask", "Yes")
    values = {one.reward: one.value for one in grades_of(told, pair, 0.5 + value / 4, 0.6)}
    assert values == {"ranked": value, "right": 0.5}
    silent = {one.reward: one.value for one in grades_of(told, pair, None, 0.2)}
    assert silent == {"ranked": 0.5, "right": 0.5}


def test_what_reviewers_have_not_agreed_on_is_no_label(home: Home, turn_of: Any) -> None:
    names = ("open", "agreed", "odds")
    people = [("ada", name, "accepted") for name in names]
    people += [("bob", "agreed", "accepted"), ("bob", "odds", "rejected")]
    put(
        home,
        *(trace(name, f"asked {name}", "an answer") for name in names),
        *(reviewed(name, verdict, by=by) for by, name, verdict in people),
        *(
            Grade(trace_id=name, reward=NAME, value=float(verdict == "accepted"), kind="human",
                  grader=f"person:{by}", confirmed_by="human")
            for by, name, verdict in people
        ),
    )  # fmt: skip
    two = "[labels]\nreviewers = 2\n"
    labelled = candidates(turn_of("kto", two))
    assert {row.trace_id: row.label for row in labelled} == {"agreed": "desirable"}
    rows = list(candidates(turn_of("rejection", f"sources = ['recorded']\n{two}")))
    assert {row.trace_id: row.reward for row in rows} == {"open": None, "agreed": 1.0, "odds": None}
    assert {row.trace_id for row in rows if row.confirmed_by} == {"agreed"}

import importlib.util
import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from environments.define import Environment
from environments.grading import grade, score
from environments.load import load_environment
from environments.mining import mine
from flywheel.project import load_project
from flywheel.records import (
    Choice,
    Feedback,
    Grade,
    ModelCall,
    Problem,
    Span,
    Trace,
    say,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "support"
MODEL = ROOT / ".models" / "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def customers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("support_customers", FOLDER / "customers.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def environment() -> Environment:
    project = load_project(FOLDER)
    return load_environment(project.environment.path, FOLDER, project.environment.config)


def recorded(customers: ModuleType, message: Any, answer: str, finish: str = "stop") -> Trace:
    prompt = tuple(say(said["role"], said["content"]) for said in customers.prompt(message.text))
    choice = Choice(message=say("assistant", answer), finish_reason=finish)
    call = ModelCall(input=prompt, tools=(), choices=(choice,))
    span = Span(id="s", kind="model", start=message.number, call=call)
    return Trace(id=message.conversation, project="support", source="gateway", origin="production",
                 external_id=message.conversation, conversation=message.conversation,
                 user=message.user, spans=(span,))  # fmt: skip


def feedback(customers: ModuleType, messages: list[Any]) -> dict[str, list[Feedback]]:
    return {
        one.conversation: [
            Feedback(project="support", target=one.conversation, target_kind="conversation",
                     name="filed", value=one.value, kind="demonstration", by=one.by)
        ]
        for one in customers.filed(messages)
    }  # fmt: skip


def problems(customers: ModuleType, environment: Environment, count: int) -> list[Problem]:
    messages = customers.messages(count)
    traces = [recorded(customers, message, "") for message in messages]
    section = load_project(FOLDER).problems
    return mine(environment, traces, feedback(customers, messages), section)


def values(grades: list[Grade]) -> dict[str, float | None]:
    return {grade.reward: grade.value for grade in grades}


RIGHT = '{"queue": "refund", "order": "A1234"}'


@pytest.mark.parametrize(
    ("answer", "finish", "correct", "valid", "queue", "order"),
    [
        (RIGHT, "stop", 1, 1, 1, 1),
        ('{"order":"A1234","queue":"refund"}', "stop", 1, 1, 1, 1),
        (RIGHT, "length", 0, 1, 1, 1),
        ('{"queue": "refund", "order": null}', "stop", 0, 1, 1, 0),
        ('{"queue": "login", "order": "A1234"}', "stop", 0, 1, 0, 1),
        ('{"queue": "Refund", "order": "A1234"}', "stop", 0, 0, 0, 0),
        ('{"queue": "refund", "order": "A12345"}', "stop", 0, 0, 0, 0),
        ('{"queue": "refund", "order": "A1234", "note": 1}', "stop", 0, 0, 0, 0),
        ('{"queue": ["refund"], "order": "A1234"}', "stop", 0, 0, 0, 0),
        (RIGHT + " I hope this helps.", "stop", 0, 0, 0, 0),
        ("[" * 100_000, "stop", 0, 0, 0, 0),
        ("", "stop", 0, 0, 0, 0),
    ],
)
def test_an_answer_is_right_only_as_a_whole(
    customers: ModuleType,
    environment: Environment,
    answer: str,
    finish: str,
    correct: int,
    valid: int,
    queue: int,
    order: int,
) -> None:
    (message, *_rest) = customers.messages(1)
    trace = recorded(customers, message, answer, finish)
    said = Feedback(project="support", target="t", name="filed", value=json.loads(RIGHT))
    problem = environment.problem_of(trace, [said])
    grades = grade(environment, trace, problem)
    assert values(grades) == {
        "correct": correct, "valid_json": valid, "queue_right": queue, "order_right": order,
    }  # fmt: skip
    assert score(grades) == correct
    assert grades[0].confirmed_by == "feedback"


def test_no_order_must_be_said(customers: ModuleType, environment: Environment) -> None:
    trace = recorded(customers, customers.messages(1)[0], '{"queue": "login"}')
    truth = {"queue": "login", "order": None}
    said = Feedback(project="support", target="t", name="filed", value=truth)
    problem = environment.problem_of(trace, [said])
    assert values(grade(environment, trace, problem))["order_right"] == 0


@pytest.mark.parametrize(
    "value", [True, "refund", {"queue": "sales", "order": None}, {"queue": []}]
)
def test_what_is_no_filing_is_no_truth(
    customers: ModuleType, environment: Environment, value: Any
) -> None:
    trace = recorded(customers, customers.messages(1)[0], RIGHT)
    said = Feedback(project="support", target="t", name="filed", value=value)
    problem = environment.problem_of(trace, [said])
    assert problem is not None and problem.answer is None
    assert values(grade(environment, trace, problem))["correct"] is None


def test_traffic_repeats_and_other_seeds_are_other_people(customers: ModuleType) -> None:
    first, second = customers.messages(120), customers.messages(120, seed=1)
    assert first == customers.messages(200)[:120]
    assert not {m.user for m in first} & {m.user for m in second}
    assert not {m.conversation for m in first} & {m.conversation for m in second}
    assert len({m.text for m in [*first, *second]}) > 230
    assert Counter(m.truth["queue"] for m in first).keys() == set(customers.QUEUES)


def test_agents_leave_out_some_err_in_some_and_say_some_twice(customers: ModuleType) -> None:
    messages = customers.messages(1000)
    truth = {m.conversation: m.truth for m in messages}
    said = customers.filed(messages)
    once = {one.conversation: one.value for one in said}
    assert 0.81 < len(once) / 1000 < 0.89
    assert 0.03 < sum(truth[key] != value for key, value in once.items()) / len(once) < 0.07
    assert 0.07 < (len(said) - len(once)) / len(once) < 0.13
    assert all(truth[m.conversation]["order"] in (None, *m.text.replace("(", " ").replace(
        ")", " ").replace(".", " ").replace(":", " ").split()) for m in messages)  # fmt: skip


def test_partners_are_a_slice_of_their_own_and_never_trained_on(
    customers: ModuleType, environment: Environment
) -> None:
    family = {m.conversation: m.family for m in customers.messages(400)}
    mined = problems(customers, environment, 400)
    assert len(mined) > 380
    for problem in mined:
        partner = family[problem.conversation or ""] == "partner"
        assert (problem.slice == "partner") is partner
        assert not (partner and problem.split == "train")
    assert {p.slice for p in mined if p.split == "train"} == {"with order", "without order"}


def test_the_first_wave_of_the_demo_is_enough_for_a_turn(
    customers: ModuleType, environment: Environment
) -> None:
    known = [p for p in problems(customers, environment, 150) if p.answer is not None]
    sides = Counter(problem.split for problem in known)
    section = load_project(FOLDER).problems
    assert sides["train"] >= section.max_train
    assert sides["heldout"] >= section.max_heldout


@pytest.mark.real_model
@pytest.mark.skipif(not (MODEL / "tokenizer.json").is_file(), reason="needs `make model`")
def test_prompt_and_answers_are_short(customers: ModuleType) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(MODEL))
    shared = tokenizer.apply_chat_template(customers.prompt("")[:-1], return_dict=False)
    assert len(shared) <= 220
    for message in customers.messages(200):
        assert len(tokenizer.encode(json.dumps(message.truth))) + 1 <= 28
        assert len(tokenizer.encode(message.text)) <= 64

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from environments.define import (
    Environment,
    Ungraded,
    group_reward,
    metric,
    reward,
    step_reward,
    stop,
)
from environments.grading import Item, grade, grade_all, score
from flywheel.records import (
    Choice,
    Grade,
    Message,
    ModelCall,
    Problem,
    Span,
    Trace,
    Truncated,
    say,
)

PROBLEM = Problem(
    environment="e", messages=(say("user", "?"),), answer={"word": "yes"}, truth_from="feedback"
)


def trace(answer: str | None = "yes", finish: str | None = "stop", **over: Any) -> Trace:
    choices = (
        () if answer is None else (Choice(message=say("assistant", answer), finish_reason=finish),)
    )
    call = ModelCall(input=PROBLEM.messages, choices=choices)
    error = over.pop("error", None)
    span = Span(id="s", kind="model", call=call, error=error)
    fields = {"id": "t", "external_id": "x", "origin": "rollout", "spans": (span,)} | over
    return Trace(project="p", source="r", **fields)


class Plain(Environment):
    @reward(weight=3.0)
    def right(self, answer: str, problem: Problem) -> bool:
        return bool(answer == problem.answer["word"])

    @reward(weight=1.0, truth=False)
    async def short(self, choice: Choice) -> float:
        await asyncio.sleep(0)
        return 0.5 if len(choice.message.text) < 5 else 0.0

    @metric
    def length(self, answer: str) -> int:
        return len(answer)

    @stop
    def done(self, trace: Trace) -> bool:
        raise AssertionError("never called by grading")


def values(grades: list[Grade]) -> dict[str, float | None]:
    return {grade.reward: grade.value for grade in grades}


def reason(grades: list[Grade], name: str) -> str:
    (found,) = [grade.reason for grade in grades if grade.reward == name]
    return found or ""


def test_methods_get_what_they_name_and_the_score_is_their_weighted_mean() -> None:
    environment = Plain()
    grades = grade(environment, trace(), PROBLEM)
    assert values(grades) == {"right": 1.0, "short": 0.5, "length": 3.0}
    assert score(grades) == (3 * 1.0 + 1 * 0.5) / 4
    right, short, length = grades
    assert (right.confirmed_by, short.confirmed_by) == ("feedback", None)
    assert (right.grader, right.problem_id) == (environment.digest, PROBLEM.id)
    assert length.weight == 0.0


def test_without_a_known_answer_only_what_needs_none_is_given() -> None:
    unknown = Problem(environment="e", messages=PROBLEM.messages)
    for problem, why in ((None, "no problem"), (unknown, "no known answer")):
        grades = grade(Plain(), trace(), problem)
        assert values(grades) == {"right": None, "short": 0.5, "length": 3.0}
        assert why in reason(grades, "right")
        assert grades[0].confirmed_by is None
        assert score(grades) is None


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (trace(None), "no answer"),
        (trace(None, error="engine gone"), "engine gone"),
        (trace("ye", error="connection lost"), "connection lost"),
        (trace("ye", finish=None), "cut"),
        (Trace(id="t", project="p", source="r", external_id="x", origin="rollout"), "no answer"),
        (
            trace(spans=(Span(id="s", kind="model", call=ModelCall(input=(), choices=(
                Choice(finish_reason="stop", message=Message(role="assistant", parts=(
                    Truncated(kept="a", size=9, digest="d"),))),))),)),
            "not whole",
        ),
    ],
)  # fmt: skip
def test_a_trace_that_says_nothing_about_its_model_is_null_not_zero(
    broken: Trace, why: str
) -> None:
    grades = grade(Plain(), broken, PROBLEM)
    assert values(grades) == {"right": None, "short": None, "length": None}
    assert all(why in (grade.reason or "") for grade in grades)


def test_an_import_that_does_not_say_how_the_answer_ended_is_graded() -> None:
    assert values(grade(Plain(), trace(finish=None, origin="import"), PROBLEM))["right"] == 1.0


class Hostile(Environment):
    limit_s = 1.5

    @metric
    def raises(self, answer: str) -> float:
        raise KeyError("lost key")

    @metric
    def nan(self, answer: str) -> float:
        return float("nan")

    @metric
    def string(self, answer: str) -> Any:
        return "1.0"

    @metric
    def nothing(self, answer: str) -> None:
        return None

    @metric
    def abstains(self, answer: str) -> float:
        raise Ungraded("the judge is not reachable from here")

    @metric
    def mutates(self, problem: Problem) -> float:
        problem.answer["word"] = "changed"
        return 1.0

    @metric
    def leaves(self, answer: str) -> float:
        raise SystemExit(0)

    @metric
    def recurses(self, answer: str) -> float:
        return self.recurses(answer)

    @metric
    def dies(self, answer: str) -> float:
        os._exit(3)

    @metric
    def sleeps(self, answer: str) -> float:
        time.sleep(3600)
        return 1.0

    @metric
    def spins(self, answer: str) -> float:
        while True:
            pass

    @metric
    def backtracks(self, answer: str) -> float:
        return float(bool(re.fullmatch(r"(a+)+b", "a" * 64)))

    @metric
    def hoards(self, answer: str) -> float:
        return float(len(bytearray(1 << 36)))

    @reward()
    def right(self, answer: str, problem: Problem) -> float:
        return float(answer == problem.answer["word"])


def test_no_reward_can_hang_kill_or_lie_and_the_others_are_still_given() -> None:
    grades = grade(Hostile(), trace(), PROBLEM)
    given = values(grades)
    assert given.pop("right") == 1.0
    assert set(given.values()) == {None} and len(given) == 13
    for name, why in {
        "raises": "lost key", "nan": "finite", "string": "not a number", "nothing": "NoneType",
        "abstains": "not reachable", "mutates": "changed", "leaves": "SystemExit",
        "recurses": "RecursionError", "dies": "ended its process", "sleeps": "longer than 1.5 s",
        "spins": "longer than", "backtracks": "longer than", "hoards": "MemoryError",
    }.items():  # fmt: skip
        assert why in reason(grades, name)
        assert len(reason(grades, name)) <= 2000
    assert PROBLEM.answer == {"word": "yes"}
    assert "test_grading.py" in reason(grades, "raises")


class Hangs(Environment):
    limit_s = 1.5

    @metric
    def hangs(self, answer: str) -> float:
        time.sleep(3600)
        return 1.0

    @metric
    def length(self, answer: str) -> int:
        return len(answer)


def test_a_reward_that_always_hangs_does_not_cost_its_limit_for_every_trace() -> None:
    graded = grade_all(Hangs(), [Item(trace(id=str(k))) for k in range(200)])
    assert [values(grades)["hangs"] for grades in graded] == [None] * 200
    assert [values(grades)["length"] for grades in graded] == [3.0] * 200
    reasons = [reason(grades, "hangs") for grades in graded]
    assert sum("longer" in why for why in reasons) == 3
    assert sum("not tried" in why for why in reasons) == 197


class Grouped(Environment):
    @group_reward(truth=False)
    def rank(self, group: Sequence[Trace]) -> list[float]:
        lengths = [len(t.spans[0].call.choices[0].message.text) for t in group]  # type: ignore
        return [float(length == min(lengths)) for length in lengths]

    @step_reward(0.5, truth=False)
    def step(self, span: Span, state: dict[str, Any]) -> int:
        state["seen"] = state.get("seen", 0) + 1
        return int(state["seen"])


def test_group_rewards_see_the_group_and_step_rewards_each_call() -> None:
    group = [trace("long answer", id="a"), trace("short", id="b")]
    graded = grade_all(Grouped(), [Item(one, PROBLEM, group) for one in group])
    assert [values(grades)["rank"] for grades in graded] == [0.0, 1.0]
    assert [score(grades) for grades in graded] == [0.0, 1.0]
    calls = tuple(
        Span(id=f"s{k}", kind="model", start=k, call=group[0].spans[0].call) for k in range(3)
    )
    alone = grade(Grouped(), trace(spans=calls), PROBLEM)
    assert "all traces" in reason(alone, "rank")
    assert [(g.span_id, g.value) for g in alone if g.span_id] == [("s0", 1), ("s1", 2), ("s2", 3)]
    assert score(alone) is None


def test_a_group_reward_of_the_wrong_length_is_null() -> None:
    class Short(Environment):
        @group_reward(truth=False)
        def rank(self, group: Sequence[Trace]) -> list[float]:
            return [1.0]

    group = [trace(id="a"), trace(id="b")]
    assert "each of its 2" in reason(grade(Short(), group[0], PROBLEM, group), "rank")


def test_no_rewards_no_score() -> None:
    assert score([]) is None
    assert score([Grade(trace_id="t", reward="m", value=1.0, weight=0.0)]) is None


def test_grading_works_where_an_event_loop_is_running() -> None:
    async def inside() -> list[Grade]:
        return grade(Plain(), trace(), PROBLEM)

    assert values(asyncio.run(inside()))["short"] == 0.5


def test_thousands_in_one_batch_come_back_in_order() -> None:
    items = [Item(trace("yes" if k % 3 else "no", id=str(k)), PROBLEM) for k in range(2000)]
    graded = grade_all(Plain(), items)
    assert [grades[0].value for grades in graded] == [float(k % 3 > 0) for k in range(2000)]
    assert [grades[0].trace_id for grades in graded] == [str(k) for k in range(2000)]


def test_what_rewards_print_does_not_reach_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    class Loud(Environment):
        @metric
        def prints(self, answer: str) -> float:
            print("noise", flush=True)
            return 1.0

    print("ours", end="")
    assert values(grade(Loud(), trace())) == {"prints": 1.0}
    out, err = capfd.readouterr()
    assert (out, err) == ("ours", "noise\n")


def test_batches_may_be_graded_in_threads_at_once() -> None:
    items = [Item(trace(id=str(k)), PROBLEM) for k in range(50)]
    with ThreadPoolExecutor(4) as pool:
        graded = list(pool.map(lambda _: grade_all(Plain(), items), range(8)))
    assert all(score(grades) == 0.875 for batch in graded for grades in batch)


SLEEPER = """
import os, time
from environments.define import Environment, metric
from environments.grading import grade
from flywheel.records import Choice, ModelCall, Span, Trace, say

class Sleeper(Environment):
    limit_s = 600.0
    source = ""

    @metric
    def sleeps(self, answer):
        print(os.getpid(), flush=True)
        time.sleep(600)

call = ModelCall(input=(), choices=(Choice(message=say("assistant", "a"), finish_reason="stop"),))
span = Span(id="s", kind="model", call=call)
fields = {"id": "t", "project": "p", "source": "r", "external_id": "x", "origin": "rollout"}
grade(Sleeper(), Trace(spans=(span,), **fields))
"""


@pytest.mark.slow
def test_a_grader_that_is_killed_takes_its_child_with_it() -> None:
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stderr=subprocess.PIPE, text=True, cwd=root
    )
    assert parent.stderr is not None
    child = int(parent.stderr.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    for _ in range(400):
        if gone(child):
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the child outlived its parent")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True

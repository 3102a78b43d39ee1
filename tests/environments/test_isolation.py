"""What rewards may do wrong, and that those which wait, wait together."""

import asyncio
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from environments.define import Environment, group_reward, metric, reward, step_reward
from environments.grading import Item, grade, grade_all, grade_recorded
from environments.isolated import AT_ONCE
from environments.isolation import PRINTED
from environments.runtimes.contract import Runtime, Sandbox
from flywheel.records import (
    Choice,
    Grade,
    Message,
    ModelCall,
    Problem,
    Refusal,
    Span,
    ToolCall,
    Trace,
    say,
)

ASKED = (say("user", "?"),)
PROBLEM = Problem(environment="e", messages=ASKED, answer={"word": "yes"}, truth_from="feedback")


def trace(answer: str = "yes", name: str = "t", **over: Any) -> Trace:
    choice = Choice(message=say("assistant", answer), finish_reason="stop")
    spans = (Span(id="s", kind="model", call=ModelCall(input=ASKED, choices=(choice,))),)
    fields = {"external_id": "x", "origin": "rollout", "spans": spans} | over
    return Trace(id=name, project="p", source="r", **fields)


def by_name(grades: Sequence[Grade]) -> dict[str, Grade]:
    return {grade.reward: grade for grade in grades}


def reasons(grades: Sequence[Grade]) -> dict[str, str]:
    return {grade.reward: grade.reason or "" for grade in grades if grade.value is None}


class Nonsense(Environment):
    limit_s = 60.0

    @metric
    def infinite(self, answer: str) -> float:
        return float("-inf")

    @metric
    def complex(self, answer: str) -> Any:
        return 1j

    @metric
    def list(self, answer: str) -> Any:
        return [1.0]

    @metric
    def huge(self, answer: str) -> Any:
        return 10**400

    @metric
    def unprintable(self, answer: str) -> Any:
        class Sour:
            def __repr__(self) -> str:
                raise ValueError("no words")

        return Sour()

    @metric
    def deep(self, answer: str) -> float:
        def further(n: int) -> int:
            return further(n + 1)

        return further(0)

    @metric
    def grows(self, answer: str) -> float:
        kept = []
        while True:
            kept.append(bytes(1 << 28))

    @metric
    async def later(self, answer: str) -> float:
        await asyncio.sleep(0)
        raise LookupError("nothing there")

    @metric
    async def cancels(self, answer: str) -> float:
        raise asyncio.CancelledError("enough")

    @metric
    def writes(self, trace: Trace) -> float:
        trace.attributes["mine"] = 1
        return 1.0

    @metric
    def reads(self, trace: Trace, problem: Problem) -> float:
        assert trace.attributes == {"kept": [1]} and problem.answer == {"word": "yes"}
        return 1.0

    @metric
    def forces(self, problem: Problem) -> float:
        msgspec.structs.force_setattr(problem, "answer", object())
        return 1.0

    @reward()
    def right(self, answer: str, problem: Problem) -> bool:
        return bool(problem.answer["word"] == answer)


def test_what_is_no_number_is_null_with_one_line_and_its_traceback() -> None:
    given = trace(attributes={"kept": [1]})
    grades = grade(Nonsense(), given, PROBLEM)
    told = reasons(grades)
    for name, why in {
        "infinite": "-inf, which is no finite", "complex": "complex '1j', not a number",
        "list": "list '[1.0]'", "huge": "OverflowError: int too large",
        "unprintable": "ValueError: no words", "deep": "RecursionError", "grows": "MemoryError",
        "later": "LookupError: nothing there", "cancels": "CancelledError: enough",
        "writes": "changed", "forces": "changed",
    }.items():  # fmt: skip
        assert why in told.pop(name).partition("\n")[0]
    assert not told
    assert by_name(grades)["reads"].value == by_name(grades)["right"].value == 1.0
    traced = by_name(grades)["later"].reason or ""
    assert "\nTraceback (most recent call last):\n" in traced and "test_isolation.py" in traced
    assert given.attributes == {"kept": [1]}


class Leaves(Environment):
    limit_s = 60.0

    @metric
    def forks(self, answer: str) -> float:
        if os.fork() == 0:
            return 7.0
        return 1.0

    @metric
    async def forks_later(self, answer: str) -> float:
        await asyncio.sleep(0)
        return float(os.fork() > 0)

    @metric
    def leaves_one_behind(self, answer: str) -> float:
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
        return float(pid)

    @metric
    def kills(self, answer: str) -> float:
        os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    @metric
    def kills_its_group(self, answer: str) -> float:
        os.kill(0, signal.SIGKILL)
        return 1.0

    @metric
    def asks(self, answer: str) -> float:
        return float(input() == "yes")

    @metric
    def threads(self, answer: str) -> float:
        threading.Thread(target=time.sleep, args=(3600,)).start()
        return 1.0

    @metric
    def last(self, answer: str) -> float:
        return 2.0


def test_a_reward_that_forks_or_kills_reaches_nobody_else() -> None:
    grades = by_name(grade(Leaves(), trace()))
    assert (grades["forks"].value, grades["forks_later"].value) == (1.0, 1.0)
    assert (grades["threads"].value, grades["last"].value) == (1.0, 2.0)
    for name in ("kills", "kills_its_group"):
        assert grades[name].reason == "the reward ended its process"
    assert "EOFError" in (grades["asks"].reason or "")
    behind = int(grades["leaves_one_behind"].value or 0)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{behind}").exists() and time.monotonic() < deadline:
        if "\nState:\tZ" in Path(f"/proc/{behind}/status").read_text():
            break
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{behind}").exists()


def test_a_reward_that_prints_megabytes_is_cut_short(capfd: pytest.CaptureFixture[str]) -> None:
    class Loud(Environment):
        @metric
        def prints(self, answer: str) -> float:
            print("x" * (4 << 20))
            return 1.0

    assert grade(Loud(), trace())[0].value == 1.0
    out, err = capfd.readouterr()
    assert not out and PRINTED <= len(err) <= PRINTED + 100 and "left out" in err


class Answers(Environment):
    @metric
    def length(self, answer: str) -> int:
        return len(answer)

    @reward()
    def right(self, answer: str, problem: Problem) -> bool:
        return bool(answer == problem.answer)


def test_answers_that_are_empty_refused_or_megabytes_long_are_graded_as_they_are() -> None:
    refused = Choice(
        message=Message(role="assistant", parts=(Refusal(text="I may not."),)), finish_reason="stop"
    )
    spans = (Span(id="s", kind="model", call=ModelCall(input=ASKED, choices=(refused,))),)
    long = "x" * (5 << 20)
    problem = Problem(environment="e", messages=ASKED, answer=long)
    items = [
        Item(trace("", "a"), problem),
        Item(trace(name="b", spans=spans), problem),
        Item(trace(long, "c"), problem),
    ]
    values = [[one.value for one in grades] for grades in grade_all(Answers(), items)]
    assert values == [[0.0, 0.0], [0.0, 0.0], [float(len(long)), 1.0]]


def test_a_problem_without_an_answer_and_one_with_a_number_of_any_size() -> None:
    none = Problem(environment="e", messages=ASKED, attributes={"truth": "the puzzle has none"})
    big = Problem(environment="e", messages=ASKED, answer=10**40)

    class Sums(Environment):
        @reward()
        def right(self, answer: str, problem: Problem) -> bool:
            return int(answer) == problem.answer

    items = [Item(trace("5", "a"), none), Item(trace(str(10**40), "b"), big)]
    unknown, known = (one for (one,) in grade_all(Sums(), items))
    assert (unknown.value, unknown.reason) == (None, "the puzzle has none")
    assert known.value == 1.0


def test_an_episode_that_failed_is_null_and_not_zero() -> None:
    failed = {"failed": "no sandbox could be started", "failed_by": "infrastructure"}
    grades = grade(Answers(), trace(attributes=failed), PROBLEM)
    assert {one.value for one in grades} == {None}
    assert all("no sandbox could be started" in (one.reason or "") for one in grades)


# --- what waits, waits together -----------------------------------------------------------------


class Waits(Environment):
    limit_s = 60.0
    together: int = 0
    most: int = 0

    @metric
    async def waits(self, answer: str) -> float:
        self.together += 1
        self.most = max(self.most, self.together)
        await asyncio.sleep(0.05)
        self.together -= 1
        return float(self.most)

    @metric
    def plain(self, answer: str) -> int:
        return len(answer)


def test_rewards_that_wait_do_so_together_and_bounded() -> None:
    graded = grade_all(Waits(), [Item(trace(name=str(k))) for k in range(100)])
    assert max(by_name(one)["waits"].value or 0 for one in graded) == AT_ONCE
    assert {by_name(one)["plain"].value for one in graded} == {3.0}


class Stuck(Environment):
    limit_s = 2.0

    @metric
    async def sleeps(self, answer: str) -> float:
        await asyncio.sleep(3600 if answer == "sleep" else 0)
        return 1.0

    @metric
    async def blocks(self, answer: str) -> float:
        await asyncio.sleep(0)
        if answer == "block":
            time.sleep(3600)
        return 1.0

    @metric
    async def dies(self, answer: str) -> float:
        await asyncio.sleep(0.1)
        if answer == "die":
            os._exit(1)
        return 1.0

    @metric
    async def refuses_to_end(self, answer: str) -> float:
        while answer == "stay":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
        return 1.0


@pytest.mark.slow
def test_of_those_that_wait_together_only_the_guilty_are_null() -> None:
    said = ("yes", "sleep", "block", "die", "stay", "no")
    graded = grade_all(Stuck(), [Item(trace(one, one)) for one in said])
    found = {(one.trace_id, one.reward): one.reason for grades in graded for one in grades
             if one.value is None}  # fmt: skip
    assert found == {
        ("sleep", "sleeps"): "took longer than 2 s",
        ("block", "blocks"): "took longer than 2 s",
        ("die", "dies"): "the reward ended its process",
        ("stay", "refuses_to_end"): "took longer than 2 s",
    }


class NeverEnds(Environment):
    limit_s = 1.0

    @metric
    async def waits(self, answer: str) -> float:
        await asyncio.sleep(3600)
        return 1.0

    @metric
    async def asks(self, answer: str, judge: Any) -> float:
        return 1.0


def test_one_that_always_hangs_is_given_up_among_those_that_wait_too() -> None:
    graded = grade_all(NeverEnds(), [Item(trace(name=str(k))) for k in range(100)])
    told = [reasons(one)["waits"] for one in graded]
    hung = sum(why == "took longer than 1 s" for why in told)
    assert AT_ONCE <= hung < AT_ONCE + 3
    assert sum("not tried" in why for why in told) == 100 - hung
    assert "no judge" in reasons(graded[0])["asks"]


class Shares(Environment):
    limit_s = 60.0

    @metric
    def parses(self, answer: str, state: dict[str, Any]) -> float:
        state["parsed"] = len(answer)
        return float(state.get("from_episode", 0))

    @metric
    def between(self, answer: str) -> float:
        if answer == "die":
            os._exit(1)
        return 1.0

    @metric
    async def uses(self, state: dict[str, Any]) -> float:
        if state["parsed"] == 4:
            os._exit(1)
        return float(state["parsed"])

    @metric
    def ends(self, state: dict[str, Any]) -> float:
        return float(state["parsed"] + 1)


def test_state_begins_as_the_episode_left_it_and_outlasts_a_child_that_died() -> None:
    recorded = trace("die", "a", attributes={"state": {"from_episode": 5}})
    first, second = (by_name(one) for one in grade_all(
        Shares(), [Item(recorded), Item(trace("four", "b"))]
    ))  # fmt: skip
    assert [first[name].value for name in ("parses", "between", "uses", "ends")] == [5, None, 3, 4]
    assert recorded.attributes == {"state": {"from_episode": 5}}
    assert (second["parses"].value, second["uses"].value, second["ends"].value) == (0.0, None, None)
    assert second["uses"].reason == "the reward ended its process"
    assert "uses, which it shares its state with" in (second["ends"].reason or "")


def test_one_trace_that_comes_twice_is_two_and_each_has_its_own_problem() -> None:
    class Counts(Environment):
        @metric
        def first(self, state: dict[str, Any]) -> int:
            state["seen"] = state.get("seen", 0) + 1
            return int(state["seen"])

        @reward()
        def right(self, answer: str, problem: Problem) -> bool:
            return bool(answer == problem.answer)

    one = trace()
    items = [Item(one, Problem(environment="e", messages=ASKED, answer=a)) for a in ("yes", "no")]
    values = [[given.value for given in grades] for grades in grade_all(Counts(), items)]
    assert values == [[1.0, 1.0], [1.0, 0.0]]


# --- groups, steps, runtimes --------------------------------------------------------------------


class Group(Environment):
    @group_reward(truth=False)
    def shortest(self, group: Sequence[Trace]) -> list[Any]:
        lengths = [len(one.spans[0].call.choices[0].message.text) for one in group]  # type: ignore
        return [None if n > 9 else float(n == min(lengths)) for n in lengths]

    @group_reward(truth=False)
    async def order(self, group: Sequence[Trace]) -> list[float]:
        await asyncio.sleep(0)
        return [float(k) for k in range(len(group))]


def test_a_group_is_what_can_be_graded_of_it_and_is_asked_once() -> None:
    dead = trace(name="dead", spans=(Span(id="s", kind="model", error="engine gone"),))
    group = [trace("long", "a"), dead, trace("no", "b"), trace("much too long", "c")]
    graded = [by_name(one) for one in grade_all(Group(), [Item(one, None, group) for one in group])]
    assert [one["shortest"].value for one in graded] == [0.0, None, 1.0, None]
    assert [one["order"].value for one in graded] == [0.0, None, 1.0, 2.0]
    assert "no answer" in (graded[1]["order"].reason or "")
    assert "gave this trace none" in (graded[3]["shortest"].reason or "")
    (alone,) = grade_all(Group(), [Item(trace("x", "z"), None, group)])
    assert "not in the group" in reasons(alone)["order"]


def test_recorded_traces_come_in_batches_that_split_no_group() -> None:
    problems = [Problem(environment="e", messages=(say("user", str(k)),)) for k in range(3)]
    recorded = [(trace("x" * (k + 1), str(k)), problems[k % 3]) for k in range(9)]
    alone = (trace("x", "none"), None)
    batches = list(grade_recorded(Group(), [*recorded, alone], size=2))
    assert sorted(len(one) for one in batches) == [3, 3, 4]
    graded = [one for batch in batches for one in batch]
    order = {one.trace.id: by_name(one.grades)["order"].value for one in graded}
    assert order == {str(k): float(k // 3) for k in range(9)} | {"none": None}
    plain = list(grade_recorded(Answers(), iter(recorded), size=4))
    assert [[one.trace.id for one in batch] for batch in plain] == [
        ["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8"],
    ]  # fmt: skip


class Steps(Environment):
    @step_reward(0.5, of="tool", truth=False)
    def worked(self, span: Span) -> bool:
        return span.result is None and not span.error

    @step_reward(of="any", truth=False)
    def any(self, span: Span) -> float:
        return 1.0

    @reward(truth=False)
    def live(self, runtime: Any) -> float:
        return 1.0


def test_step_rewards_are_given_to_the_spans_that_they_are_of() -> None:
    model = trace().spans[0]
    tools = [
        Span(id=f"t{k}", kind="tool", start=k, tool=ToolCall(name="f", arguments=""), error=error)
        for k, error in enumerate((None, "refused"))
    ]
    grades = grade(Steps(), trace(spans=(*tools, model)))
    assert [(one.reward, one.span_id, one.value) for one in grades] == [
        ("worked", "t0", 1.0), ("worked", "t1", 0.0),
        ("any", "s", 1.0), ("any", "t0", 1.0), ("any", "t1", 1.0),
        ("live", None, None),
    ]  # fmt: skip
    assert "while it runs" in (grades[-1].reason or "")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_reward_that_names_sandbox_has_a_new_one_each_time_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Runs(Environment):
        runtime = Sandbox()

        @reward(truth=False)
        async def passes(self, answer: str, sandbox: Runtime) -> float:
            await sandbox.write("main.sh", answer)
            ran = await sandbox.exec(["sh", "main.sh"])
            if ran.stdout.strip() == "leave":
                os._exit(1)
            return float(ran.ok and ran.stdout.strip() == "main.sh")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said = ("ls", "exit 1", "echo leave", "ls")
    graded = grade_all(Runs(), [Item(trace(one, str(k))) for k, one in enumerate(said)])
    assert [one.value for (one,) in graded] == [1.0, 0.0, None, 1.0]
    assert graded[2][0].reason == "the reward ended its process"
    assert not list(tmp_path.iterdir())

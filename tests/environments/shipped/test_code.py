"""The environment `code`: what is right earns marks, and nothing else does, however it cheats."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from environments.golden import trace_of
from environments.grading import Item, grade_all, score
from environments.harnesses.contract import Access, Episode
from environments.runtimes.contract import Sandbox
from environments.runtimes.sandbox import SandboxRuntime
from environments.shipped.code.environment import Code, program
from environments.shipped.code.examining import Examined, examine
from environments.shipped.code.made import KINDS, made
from flywheel.records import Problem, Span, ToolCall, ToolResult, model_spans
from tests.environments.runtimes.conftest import why_none

CASES = {"kind": "cases", "entry": "double", "cases": [[[1], 2], [[4], 8], [[0], 0], [[-3], -6]]}
ROW = {
    "task_id": "Own/0",
    "prompt": 'def triple(x: int):\n    """ Three times x.\n    >>> triple(2)\n    6\n    """\n',
    "entry_point": "triple",
    "canonical_solution": "    return 3 * x\n",
    "test": "def check(candidate):\n    assert candidate(1) == 3\n    assert True, 'no test'\n"
    "    for x in (5, 7):\n        assert candidate(x) == 3 * x, 'wrong'\n",
}


@pytest.fixture
def examined(tmp_path: Path) -> Callable[..., Examined]:
    if (reason := why_none()) is not None:
        pytest.skip(reason)

    def run(source: str, tests: dict[str, object] = CASES) -> Examined:
        async def main() -> Examined:
            runtime = SandboxRuntime(Sandbox(), tmp_path / "box")
            await runtime.start()
            try:
                return await examine(runtime, source, tests)
            finally:
                await runtime.stop()

        return asyncio.run(main())

    return run


def test_a_right_program_passes_and_a_wrong_one_is_told_why(
    examined: Callable[..., Examined],
) -> None:
    assert examined("def double(x): return 2 * x")[:2] == (4, 4)
    found = examined("def double(x):\n    return 2 * x if x > 0 else 1 // 0")
    assert found[:2] == (2, 4) and found.reason == "ok"
    assert "line 2, in double" in found.failures[0] and "ZeroDivisionError" in found.failures[0]
    assert "returned 3, wanted 2" in examined("def double(x): return 3").failures[0]


def test_a_program_that_does_not_load_passes_nothing(examined: Callable[..., Examined]) -> None:
    for source in (
        "def double(x) return",
        "import sys; sys.exit()",
        "x = 1",
        "raise KeyError('q')",
    ):
        found = examined(source)
        assert (found.share, found.reason) == (0.0, "did not load")
    assert examined("import os; os._exit(0)").reason == "did not load"


CHEATS = {
    "prints": "def double(x): print('passed', '4 of 4'); return None",
    "is always equal": "class E(int):\n    __eq__ = lambda *a: True\n    __hash__ = int.__hash__\n"
    "def double(x): return E(99)",
    "ends with success": "import sys\ndef double(x): sys.exit(0)",
    "ends at once": "import os\ndef double(x): os._exit(0)",
    "forges its answers": "import os\ndef double(x):\n    for fd in range(3, 20):\n        try: "
    "os.write(fd, b'{\"value\": 2}\\n')\n        except OSError: pass",
    "reads the tests": "import glob, re\ndef double(x):\n    found = ''\n    for path in "
    "glob.glob('/proc/*/mem') + glob.glob('/proc/*/environ') + glob.glob('/proc/*/fd/*'):\n"
    "        try: found += open(path, 'rb').read(1000000).decode('latin1')\n        except "
    "(OSError, ValueError): pass\n    return len(re.findall('wanted', found)) or None",
    "kills its tester": "import os, signal\ndef double(x): os.kill(os.getppid(), 9)",
    "patches what tests use": "import builtins, math\nmath.isclose = lambda *a, **k: True\n"
    "builtins.map = builtins.all = lambda *a: True\ndef double(x): return object()",
    "returns a generator": "def double(x): yield 2 * x",
    "returns too much": "def double(x): return 'x' * 50_000_000",
}


@pytest.mark.slow
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_pass_nothing(
    examined: Callable[..., Examined], cheat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.shipped.code.examining.SECONDS", 1.0)
    found = examined(CHEATS[cheat])
    assert found.passed == (1 if cheat == "forges its answers" else 0) or found.share <= 0.25


@pytest.mark.slow
def test_one_that_takes_too_much_is_ended_and_said_to_be(
    examined: Callable[..., Examined], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.shipped.code.examining.SECONDS", 1.0)
    hung = examined("def double(x):\n    while x == 4: pass\n    return 2 * x")
    assert hung[:2] == (3, 4) and hung.reason == "lost" and "longer than 1 s" in hung.failures[0]
    eats = examined("def double(x):\n    a = []\n    while True: a.append(bytearray(10**7))")
    assert eats.share == 0 and eats.reason in ("memory", "lost")


@pytest.mark.parametrize("value", ['["z", 1]', '["s", ["l", 1]]', '["c"]', "DEEP"])
def test_what_a_program_returns_ends_its_own_test_alone(
    examined: Callable[..., Examined], value: str
) -> None:
    source = f"""
import os
said = {value!r}.replace("DEEP", "[" * 99_999 + "]" * 99_999)
def double(x):
    if x: return 2 * x
    for answers in range(3, 9):
        try: os.write(answers, b'{{"value": %s}}\\n' % said.encode())
        except OSError: pass
"""
    found = examined(source)
    assert found.tests == 4 and found.passed >= 2 and not found.all_passed


def test_values_keep_their_kind(examined: Callable[..., Examined]) -> None:
    def asked(wanted: object, source: str) -> bool:
        tests = {"kind": "cases", "entry": "f", "cases": [[[], wanted]]}
        return examined(f"def f(): return {source}", tests).all_passed

    assert asked([1, [2.0]], "(1, (2.0,))")
    assert asked(0.3, "0.1 + 0.2")
    assert asked({"a": [1]}, "__import__('collections').OrderedDict(a=[1])")
    assert not asked(True, "1")
    assert not asked("1", "1")
    assert not asked([1], "{1}")


def _code(**config: object) -> Code:
    return Code(config)


def test_problems_are_the_same_each_time_and_have_both_sides() -> None:
    problems = list(_code().problems().problems)
    assert [one.id for one in problems] == [one.id for one in _code().problems().problems]
    assert len(problems) > 220
    assert {one.slice for one in problems} == {*KINDS, "handmade"}
    assert {one.split for one in problems} == {"train", "heldout"}
    for one in problems:
        hidden = one.answer["cases"][2:]
        assert hidden and not any(repr(given) in one.text for given, _ in hidden if given != [[]])
    assert [one.text for one in made(4, 1)] != [one.text for one in made(4, 2)]


def test_gold_earns_full_marks_and_near_misses_little() -> None:
    if (reason := why_none()) is not None:
        pytest.skip(reason)
    code = _code(tasks={"kind": "made", "limit": 9, "near_duplicate": None})
    some = [one for one in code.problems().problems if one.slice != "handmade"]
    gold = [Item(trace_of(one, code.gold(one) or ""), one) for one in some]
    assert [score(grades) for grades in grade_all(code, gold)] == [1.0] * len(some)
    near = [Item(trace_of(one, code.wrong(one)[0]), one) for one in some]
    assert all((score(grades) or 0) < 0.3 for grades in grade_all(code, near))


def test_humaneval_is_for_evaluation_and_its_tests_count(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(json.dumps(ROW))
    code = _code(tasks={"path": str(tmp_path / "own.jsonl"), "heldout_share": 0.1})
    (problem,) = code.problems().problems
    assert (problem.split, problem.slice) == ("heldout", "humaneval")
    assert "Complete this function" in problem.messages[-1].text
    if (reason := why_none()) is not None:
        pytest.skip(reason)
    answers = [
        code.gold(problem),
        "    return 3 * x",
        "```python\ndef triple(x):\n    return 3\n```",
        "no",
    ]
    items = [Item(trace_of(problem, said or "", n), problem) for n, said in enumerate(answers)]
    shares = [
        {one.reward: one.value for one in grades}["share_passed"]
        for grades in grade_all(code, items)
    ]
    assert shares == [1.0, 1.0, pytest.approx(1 / 3), 0.0]


def test_the_program_is_the_last_block_or_the_whole() -> None:
    problem = Problem(environment="code", messages=(), answer={"entry": "f"})
    assert program("first\n```python\na\n```\nthen\n```py\nb\n```", problem) == "b"
    assert program("x = 1", problem) == "x = 1"
    assert program("```python\nunended", problem) == "unended"


def test_a_check_tells_the_examples_alone(tmp_path: Path) -> None:
    if (reason := why_none()) is not None:
        pytest.skip(reason)
    (tmp_path / "own.jsonl").write_text(json.dumps(ROW))
    code = _code(tasks={"path": str(tmp_path / "own.jsonl")})
    (problem,) = code.problems().problems

    async def asked(answer: str) -> str | None:
        runtime = SandboxRuntime(Sandbox(), tmp_path / "box")
        await runtime.start()
        access, rng = Access("", "", ""), __import__("random").Random(0)
        try:
            return await code.check(Episode(code, problem, access, rng, runtime), answer)
        finally:
            await runtime.stop()

    assert asyncio.run(asked("    return 3 * x")) is None
    assert asyncio.run(asked("    return 6")) is None
    told = asyncio.run(asked("```python\ndef triple(x):\n    return x.no\n```")) or ""
    assert told.startswith("0 of 1 examples") and "AttributeError" in told and "line" in told


def test_understanding_an_error_is_a_step_reward() -> None:
    problem = Problem(environment="code", messages=(), answer={"entry": "f", "cases": []})
    trace = trace_of(problem, "x")
    (call,) = model_spans(trace)

    def checks(*said: str | None) -> list[Span]:
        return [
            Span(id=f"c{n}", kind="tool", name="check", parents=(call.id if n else "other",),
                 error=one, tool=ToolCall(name="check", arguments="{}"),
                 result=ToolResult(content=one or ""))
            for n, one in enumerate(said)
        ]  # fmt: skip

    def value(*said: str | None) -> float:
        spans = (*trace.spans, *checks(*said))
        return Code().understood(call, trace.__class__(**{
            **{name: getattr(trace, name) for name in trace.__struct_fields__}, "spans": spans,
        }))  # fmt: skip

    assert value("wrong", None) == 1.0
    assert value("wrong", "other") == 0.5
    assert value("wrong", "wrong") == 0.0

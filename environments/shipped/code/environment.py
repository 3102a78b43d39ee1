"""Writing programs in Python: small functions of our own making, or HumanEval.

A program is put to tests that it cannot see, in a sandbox; what it prints says nothing. With
`harness = {kind = "correcting"}` it is first put to the examples that the problem shows, and the
model is told what went wrong. HumanEval (`tasks.path`, its JSONL) is for evaluation only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from environments.define import Environment
from environments.harnesses.contract import Episode
from environments.marks import Ungraded, metric, reward, step_reward
from environments.runtimes.contract import Runtime, Sandbox
from environments.shipped.code.examining import LIMITS, Examined, examine
from environments.shipped.code.handmade import HANDMADE
from environments.shipped.code.made import ENTRY, KINDS, made
from environments.tasksets.contract import TaskSet
from flywheel.records import Message, Problem, Span, Trace, say

COUNT = 240
TOLD = 2
"""Cases of each problem that the model is told; the others grade it."""
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_ASKED = "Write the function. Answer with one ```python block and nothing else."


class Code(Environment):
    """Slices: the kinds of problems, `handmade`, `humaneval`."""

    tasks = TaskSet(kind="made", near_duplicate=None)
    # One step more or another number is another problem, though most of its words are the same.
    runtime = Sandbox(limits=LIMITS)

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        assert self.tasks is not None
        if self.tasks.kind != "made":
            self.tasks = self.tasks.model_copy(update={"heldout_share": 1.0})

    # --- problems

    def made(self, tasks: TaskSet) -> Iterator[Problem]:
        for one in HANDMADE:
            cases = [[list(given), result] for given, result in one.cases]
            yield self._problem("handmade", one.entry, one.head, one.text, cases,
                                one.solution, one.near)  # fmt: skip
        count = max(0, (tasks.limit or COUNT) - len(HANDMADE))
        for task in made(count, tasks.seed, KINDS):
            given = (ENTRY, task.head, task.text, task.cases, task.solution, task.near)
            problem = self._problem(task.kind, *given)
            yield msgspec.structs.replace(problem, attributes={"level": task.level})

    def _problem(
        self, kind: str, entry: str, head: str, text: str, cases: list[list[Any]],
        solution: str, near: str,
    ) -> Problem:  # fmt: skip
        shown = "\n".join(
            f"{entry}({', '.join(map(repr, given))}) == {result!r}"
            for given, result in cases[:TOLD]
        )
        asked = f"Python function `{head}`\n\n{text}\n\nExamples:\n{shown}\n\n{_ASKED}"
        answer = {"entry": entry, "cases": cases, "solution": solution.strip() + "\n",
                  "near": near.strip() + "\n"}  # fmt: skip
        return Problem(environment=self.name, messages=(say("user", asked),), answer=answer,
                       slice=kind, text=text, truth_from="ground_truth")  # fmt: skip

    def posed(self, problem: Problem) -> Problem:
        if not isinstance(problem.answer, dict) or "test" not in problem.answer:
            return problem
        asked = f"Complete this function:\n\n```python\n{problem.answer['prompt']}```\n\n{_ASKED}"
        *before, _ = problem.messages
        return msgspec.structs.replace(
            problem,
            messages=(*before, say("user", asked)),
            slice="humaneval",
            text=problem.answer["prompt"],
        )

    # --- what the model is told, where it may correct itself

    async def check(self, episode: Episode, answer: str) -> str | None:
        """The examples alone: the tests stay unknown."""
        assert episode.runtime is not None, "a Correcting harness needs the environment's runtime"
        tests = _shown(episode.problem.answer)
        found = await examine(episode.runtime, program(answer, episode.problem), tests)
        if found.reason == "ok" and found.passed == found.tests:
            return None
        head = f"{found.passed} of {found.tests} examples are right."
        return "\n".join((head, *found.failures, "Correct the function. " + _ASKED))

    # --- rewards

    @reward(1.0)
    async def all_passed(
        self, answer: str, problem: Problem, sandbox: Runtime, state: dict[str, Any]
    ) -> bool:
        return (await self._examined(answer, problem, sandbox, state)).all_passed

    @reward(0.25)
    async def share_passed(
        self, answer: str, problem: Problem, sandbox: Runtime, state: dict[str, Any]
    ) -> float:
        return (await self._examined(answer, problem, sandbox, state)).share

    @metric
    async def ended_well(
        self, answer: str, problem: Problem, sandbox: Runtime, state: dict[str, Any]
    ) -> bool:
        """It loaded, and no call hung it, ended it or took more than it may."""
        return (await self._examined(answer, problem, sandbox, state)).reason == "ok"

    @metric
    async def stopped_for_limits(
        self, answer: str, problem: Problem, sandbox: Runtime, state: dict[str, Any]
    ) -> bool:
        """Time, memory or output ran out."""
        examined = await self._examined(answer, problem, sandbox, state)
        return examined.reason in ("lost", "timeout", "memory", "output")

    @step_reward(0.5, truth=False)
    def understood(self, span: Span, trace: Trace) -> float:
        """Whether the error was understood: 1 = this answer passes the examples, 0.5 = it gets
        further or fails otherwise than the one before, 0 = the same error again."""
        checks = [one for one in trace.spans if one.kind == "tool" and one.name == "check"]
        at = next((n for n, one in enumerate(checks) if span.id in one.parents), None)
        if at is None:
            raise Ungraded("this answer was not put to the examples")
        if checks[at].error is None:
            return 1.0
        before = _said(checks[at - 1]) if at else None
        return 0.5 if before is not None and before != _said(checks[at]) else 0.0

    async def _examined(
        self, answer: str, problem: Problem, sandbox: Runtime, state: dict[str, Any]
    ) -> Examined:
        """Once a trace; the others read what the first one found."""
        kept = state.get("_examined")
        if not isinstance(kept, Examined):
            tests = _hidden(problem.answer)
            kept = state["_examined"] = await examine(sandbox, program(answer, problem), tests)
        return kept

    # --- `flywheel env check`

    def gold(self, problem: Problem) -> str | list[Message] | None:
        answer = problem.answer
        head = answer.get("prompt", "")
        return f"```python\n{head}{answer['solution']}```"

    def wrong(self, problem: Problem) -> Sequence[str | list[Message]]:
        """A near miss, nothing, and programs that cheat."""
        entry = (
            problem.answer["entry"] if "cases" in problem.answer else problem.answer["entry_point"]
        )
        equal = (
            f"class Equal(int):\n    __eq__ = lambda *_: True\ndef {entry}(*_):\n    return Equal()"
        )
        ended = f'print("passed")\nimport os\ndef {entry}(*_):\n    os._exit(0)'
        near = [_fenced(problem.answer["near"])] if "near" in problem.answer else []
        return (*near, "I cannot do that.", _fenced(equal), _fenced(ended))


def program(answer: str, problem: Problem) -> str:
    """The program in an answer: its last block, else all of it. HumanEval's answers may also be
    only the lines that follow the function's head."""
    blocks = _FENCED.findall(answer)
    code = str(blocks[-1]) if blocks else answer
    truth = problem.answer
    if "prompt" not in truth:
        return code
    whole = re.search(rf"^def\s+{re.escape(truth['entry_point'])}\b", code, re.MULTILINE)
    return f"{truth['prompt']}\n\n{code}" if whole else f"{truth['prompt']}{code}"


def _shown(truth: Mapping[str, Any]) -> dict[str, Any]:
    if "cases" in truth:
        return {"kind": "cases", "entry": truth["entry"], "cases": truth["cases"][:TOLD]}
    return {"kind": "examples", "entry": truth["entry_point"], "setup": truth["prompt"]}


def _hidden(truth: Mapping[str, Any]) -> dict[str, Any]:
    if "cases" in truth:
        return {"kind": "cases", "entry": truth["entry"], "cases": truth["cases"][TOLD:]}
    return {"kind": "check", "entry": truth["entry_point"], "setup": truth["prompt"],
            "check": truth["test"]}  # fmt: skip


def _said(check: Span) -> str:
    return check.result.content if check.result else ""


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"

"""Traces graded per second and core for a reward in plain Python (goal: 20,000), beside a plain
loop that calls the same function, and beside verifiers scoring the same answers offline.

Ours forks a child for each batch of 2,000, hands out copies, bounds time and memory, and writes a
Grade; the plain loop is the function alone and keeps nothing; verifiers' `Task.score` writes into
its trace. All are bound to one core.

    python benchmarks/environments.py grading [--traces 20000]
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from environments.define import Environment, reward
from environments.grading import grade_recorded
from flywheel.records import Choice, ModelCall, Problem, Span, Trace, last_answer, say
from flywheel.settings import Settings

WORDS = str.split(
    "the order was shipped on monday from our warehouse and should arrive within two working days "
    "please check the tracking page if nothing moves call support we can refund the express fee"
)
THEIRS = """
import asyncio, json, sys, time
import verifiers.v1 as vf
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.graph import MessageNode
from verifiers.v1.types import AssistantMessage, UserMessage

class Data(vf.TaskData):
    truth: str

class Right(vf.Task[Data]):
    @vf.reward
    async def right(self, trace):
        return float(trace.last_reply == self.data.truth)

rows = [json.loads(line) for line in sys.stdin]
made = []
for asked, answer, truth in rows:
    task = Right(Data(prompt=asked, truth=truth))
    nodes = [
        MessageNode(message=UserMessage(content=asked)),
        MessageNode(parent=0, message=AssistantMessage(content=answer), sampled=True),
    ]
    info = AgentInfo.model_construct(config=None)
    trace = Trace.model_construct(task=TraceTask(type="Right", data=task.data), agent=info,
                                  nodes=nodes)
    made.append((task, trace))

async def score():
    for task, trace in made:
        await task.score(trace)

wall, cpu = time.perf_counter(), time.process_time()
asyncio.run(score())
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
assert sum(trace.rewards["right"].score for _, trace in made) == len(made) // 2
print(json.dumps({"wall_s": wall, "cpu_s": cpu}))
"""


class Right(Environment):
    @reward()
    def right(self, answer: str, problem: Problem) -> float:
        return right(answer, problem.answer)


def right(answer: str, truth: str) -> float:
    return float(answer.strip() == truth)


def recorded(number: int) -> list[tuple[Trace, Problem]]:
    """Conversations of 0.6 KB, half of them answered rightly."""
    dice = random.Random(1)

    def text(words: int) -> str:
        return " ".join(dice.choice(WORDS) for _ in range(words))

    made = []
    for k in range(number):
        asked = (say("system", "You are a support agent. " + text(44)), say("user", text(30)))
        truth = text(30)
        answer = truth if k % 2 else text(29)
        choice = Choice(message=say("assistant", answer), finish_reason="stop")
        call = ModelCall(input=asked, choices=(choice,))
        spans = (Span(id="s", kind="model", start=k, end=k + 1, call=call),)
        trace = Trace(id=str(k), project="bench", source="gateway", external_id=str(k),
                      origin="production", spans=spans)  # fmt: skip
        made.append((trace, Problem(environment="right", messages=asked, answer=truth)))
    return made


def ours(rows: list[tuple[Trace, Problem]]) -> float:
    batches = grade_recorded(Right(), rows)
    return sum(one.grades[0].value or 0.0 for batch in batches for one in batch)


def loop(rows: list[tuple[Trace, Problem]]) -> float:
    total = 0.0
    for trace, problem in rows:
        choice = last_answer(trace)
        total += right(choice.message.text if choice else "", problem.answer)
    return total


def rate(step: Callable[[list[Any]], float], rows: list[Any]) -> dict[str, float]:
    """The best of three; CPU time is of all processes together."""
    best: dict[str, float] = {}
    for _ in range(3):
        wall, cpu = time.perf_counter(), cpu_s()
        assert step(rows) == len(rows) // 2
        found = per_second(len(rows), time.perf_counter() - wall, cpu_s() - cpu)
        best = max(best, found, key=lambda one: one.get("per_cpu_second", 0))
    return best


def cpu_s() -> float:
    """Of this process and of its children that ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def per_second(traces: int, wall: float, cpu: float) -> dict[str, float]:
    return {"per_second": round(traces / wall), "per_cpu_second": round(traces / cpu)}


def verifiers(rows: list[tuple[Trace, Problem]]) -> dict[str, Any]:
    python = Settings().verifiers / "bin" / "python"
    if not python.exists():
        return {"skipped": "make install-verifiers puts it here"}
    lines = [
        json.dumps([problem.messages[1].text, answer.message.text, problem.answer])
        for trace, problem in rows
        if (answer := last_answer(trace))
    ]
    done = subprocess.run(
        [str(python), "-c", THEIRS],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "DO_NOT_TRACK": "1", "HOME": str(Path.home())},
    )
    if done.returncode:
        return {"failed": done.stderr.strip()[-500:]}
    said = json.loads(done.stdout.splitlines()[-1])
    return per_second(len(rows), said["wall_s"], said["cpu_s"])


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="environments.py grading", description=__doc__)
    parser.add_argument("--traces", type=int, default=20_000)
    options, _ = parser.parse_known_args(arguments)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        return bench(recorded(options.traces))
    finally:
        os.sched_setaffinity(0, cores)


def bench(rows: list[tuple[Trace, Problem]]) -> dict[str, Any]:
    found: dict[str, Any] = {"traces": len(rows), "goal_per_second": 20_000}
    for name, measured in (("flywheel", ours), ("plain_loop", loop)):
        found[name] = rate(measured, rows)
        print(f"{name:11} {found[name]}", file=sys.stderr)
    found["verifiers"] = verifiers(rows)
    print(f"verifiers   {found['verifiers']}", file=sys.stderr)
    return found

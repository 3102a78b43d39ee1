"""Programs that speak to a URL and do not know who answers, by way of the real interception."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from environments.attempt import Finished
from environments.define import Environment
from environments.harnesses.contract import Budget, Program
from environments.harnesses.program import cut
from environments.marks import setup
from environments.runtimes.contract import Runtime, RuntimeConfig, Sandbox, Trusted
from environments.runtimes.pool import Pool
from flywheel.records import Problem, model_spans, say
from tests.environments.playing import ended, play, says, spans

WALLED = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
KINDS = [Trusted(), pytest.param(Sandbox(), marks=WALLED)]
ASK = """
import json, os, sys, urllib.request
def ask(*said, **headers):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": list(said), "temperature": 0.123}
    asked = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
        {"content-type": "application/json",
         "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
         **{name.replace("_", "-"): value for name, value in headers.items()}})
    with urllib.request.urlopen(asked) as got:
        answer = json.load(got)
        return answer["choices"][0]["message"], got.headers["x-flywheel-span"]
def user(text):
    return {"role": "user", "content": text}
"""
CHAT = """
posed = json.load(open("problem.json"))["messages"]
assert open("prompt.txt").read() == "Be short.\\n\\nWhat is it?", open("prompt.txt").read()
first, _ = ask(*posed)
second, _ = ask(*posed, first, user("and then?"))
open("answer.txt", "w").write(second["content"])
print("said", second["content"])
"""
AGENTS = """
def agent(name, parent):
    said, span = ask(user("I am " + name), x_flywheel_parent=parent)
    return ask(user("I am " + name), said, user("go on"))
plan, root = ask(user("plan"))
(one, last), (two, other) = agent("one", root), agent("two", root)
ask(user("plan"), plan, user(one["content"] + two["content"]), x_flywheel_parent=f"{last},{other}")
"""


class Company(Environment):
    @setup
    async def lay(self, runtime: Runtime, state: dict[str, Any]) -> None:
        await runtime.write("ask.py", ASK)


def run(
    engine: Any,
    folder: Path,
    script: str,
    kind: RuntimeConfig,
    *,
    command: Sequence[str] = ("python3", "-c", "{prompt}"),
    samples: int = 1,
    **budget: Any,
) -> list[Finished]:
    """The script is the problem's prompt, unless the command is another."""
    environment = Company()
    environment.runtime = kind
    environment.harness = Program(command=tuple(command), budget=Budget(**budget))
    problem = Problem(environment="company", messages=(say("user", script),))
    return play(
        environment, engine.url, [problem], pool=lambda: Pool(kind, folder), samples=samples
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_program_finds_model_and_problem_and_is_recorded(
    engine: Any, tmp_path: Path, kind: RuntimeConfig
) -> None:
    engine.reply = says(lambda messages: f"answer {len(messages)}")
    environment = Company()
    environment.runtime = kind
    environment.harness = Program(command=("python3", "-c", ASK + CHAT))
    messages = (say("system", "Be short."), say("user", "What is it?"))
    problem = Problem(environment="company", answer="secret truth", messages=messages)
    (done,) = play(environment, engine.url, [problem], pool=lambda: Pool(kind, tmp_path))
    (agent,) = spans(done, "agent")
    assert ended(done) == "answered", agent.attributes
    assert (agent.name, agent.attributes["stdout"]) == ("python3", "said answer 4\n")
    calls = model_spans(done.trace)
    assert len(calls) == 2 and calls[1].parents == (calls[0].id,)
    assert all(call.call and call.call.choices[0].tokens for call in calls)
    assert {asked["temperature"] for asked in engine.asked} == {1.0}  # the run's, not the program's
    assert "secret truth" not in str(agent.attributes)


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("import sys; print('x' * 5000); sys.exit(3)", "program: exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "program: killed"),
        ("import time; time.sleep(600)", "budget: wall"),
        ("print('fine')", "answered"),
    ],
)
def test_how_a_program_ended_is_clear(engine: Any, tmp_path: Path, script: str, how: str) -> None:
    wall = 1.5 if "sleep" in script else 60.0
    (done,) = run(engine, tmp_path, script, Trusted(), wall_s=wall, tool_output=256)
    (agent,) = spans(done, "agent")
    assert ended(done) == how
    assert agent.error == (None if how == "answered" else how)
    if "5000" in script:
        assert "[… 4745 characters left out …]" in agent.attributes["stdout"]
    assert "failed" not in done.trace.attributes  # the model's episode, not the machine's fault


def test_a_program_that_is_not_there_is_no_answer(engine: Any, tmp_path: Path) -> None:
    (done,) = run(engine, tmp_path, "x", Trusted(), command=("no-such-agent",))
    assert ended(done) == "program: exit code 127"
    assert "no-such-agent" in spans(done, "agent")[0].attributes["stderr"]


def test_calls_beyond_the_budget_are_refused(engine: Any, tmp_path: Path) -> None:
    script = ASK + "for n in range(9): ask(user(str(n)))"
    (done,) = run(engine, tmp_path, script, Trusted(), turns=3)
    assert len(engine.asked) == 3
    assert done.trace.attributes["refused_calls"] == {"429": 1}
    assert ended(done) == "program: exit code 1"


@WALLED
def test_a_walled_program_reaches_the_model_and_nothing_else(engine: Any, tmp_path: Path) -> None:
    port = engine.url.rpartition(":")[2]
    script = (
        ASK
        + f"""
import socket
ask(user("hello"))
for where in (("127.0.0.1", {port}), ("1.1.1.1", 53)):
    try:
        socket.create_connection(where, timeout=2)
        print("reached", where)
    except OSError:
        print("walled")
"""
    )
    (done,) = run(engine, tmp_path, script, Sandbox())
    (agent,) = spans(done, "agent")
    assert agent.attributes["stdout"] == "walled\nwalled\n", agent.attributes
    assert len(engine.asked) == 1


def test_two_sub_agents_are_a_graph(engine: Any, tmp_path: Path) -> None:
    """Each sub-agent's calls hang on what called it; the last call comes from both."""
    engine.reply = says(lambda messages: f"after {messages[-1]['content']}")
    (done,) = run(engine, tmp_path, ASK + AGENTS, Trusted())
    assert ended(done) == "answered", spans(done, "agent")[0].attributes
    calls = model_spans(done.trace)
    assert [len(call.parents) for call in calls] == [0, 1, 1, 1, 1, 3]
    plan, one, one_more, two, two_more, last = calls
    assert one.parents == two.parents == (plan.id,)
    assert (one_more.parents, two_more.parents) == ((one.id,), (two.id,))
    assert set(last.parents) == {plan.id, one_more.id, two_more.id}  # its messages, its header


def test_many_programs_at_once_are_each_recorded_apart(engine: Any, tmp_path: Path) -> None:
    engine.reply = says(lambda messages: "yes")
    done = run(engine, tmp_path, ASK + "ask(user('one'))", Trusted(), samples=4)
    assert len({one.trace.id for one in done}) == 4
    assert [len(model_spans(one.trace)) for one in done] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "why"),
    [(None, "a program needs a runtime"), ("container", "a container has no way")],
)
def test_where_no_program_can_run_is_said(
    engine: Any, tmp_path: Path, kind: str | None, why: str
) -> None:
    from environments.runtimes.contract import Container

    environment = Company()
    environment.harness = Program(command=("true",))
    environment.runtime = Container(image="x") if kind else None
    problem = Problem(environment="company", messages=(say("user", "x"),))
    (done,) = play(environment, engine.url, [problem], pool=lambda: Pool(Trusted(), tmp_path))
    assert why in done.trace.attributes["failed"]
    assert done.trace.attributes["failed_by"] == "environment"


def test_cutting_keeps_both_ends() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("a" * 10 + "z" * 10, 10) == "aaaaa\n[… 10 characters left out …]\nzzzzz"

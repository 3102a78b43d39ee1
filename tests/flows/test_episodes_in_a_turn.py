"""A turn's sampling with an environment of several calls: the real engine, the tiny model."""

from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from flywheel.errors import EngineError
from flywheel.home import Home
from flywheel.records import Grade, Problem, Trace, model_spans, say

TOOLS = '''
from environments.define import Environment, metric, reward, setup, stop
from environments.harnesses.contract import Budget, Episode, Tool, Correcting
from flywheel.records import Problem


class Sorting(Environment):
    """The model writes, is told what is wrong, and corrects; it may look a digit up."""

    harness = Correcting(attempts=2, budget=Budget(turns=4))

    @setup
    def count(self, state: dict) -> None:
        state["checked"] = 0

    def tools(self, episode: Episode) -> list[Tool]:
        return [Tool("digit", "a digit", {"type": "object"}, lambda: 4)]

    async def check(self, episode: Episode, answer: str) -> str | None:
        episode.state["checked"] += 1
        return None if answer.strip() == episode.problem.answer else "2 1"

    @reward()
    def correct(self, answer: str, problem: Problem) -> bool:
        return answer.strip() == problem.answer

    @metric
    def checked(self, state: dict) -> int:
        return state["checked"]
'''


def stored(home: Home, run_id: str) -> tuple[list[Trace], list[Grade]]:
    from storage.judgements import grades
    from storage.queries import traces

    found = [one for batch in traces(home, run_id=run_id) for one in batch]
    return found, grades(home, run_id=run_id)


@pytest.mark.slow
def test_a_chunk_of_episodes_is_sampled_graded_and_kept_once(
    home: Home, project_folder: Path, traffic: ModuleType
) -> None:
    from storage.committer import commit
    from storage.inbox import Inbox
    from tasks.candidates import candidates
    from tasks.sample import answers
    from tasks.turns import environment_of, open_turn, project_of, serving

    (project_folder / "environment.py").write_text(TOOLS)
    file = project_folder / "flywheel.toml"
    file.write_text(file.read_text().replace("context = 256", "context = 512"))
    problems = [
        Problem(environment="sorting", messages=(say("user", text),), answer=answer, text=text)
        for text, answer in (("3 1 2", "1 2 3"), ("5 4", "4 5"))
    ]
    Inbox(home).append(problems)
    commit(home)
    ids = [one.id for one in problems]
    asked: dict[str, Any] = {"name": "rollouts-x-0", "origin": "rollout", "samples": 2}
    with serving(str(project_folder)):
        turn = open_turn(str(project_folder), {})
        said = answers(turn, ids, turn.start, **asked)
        again = answers(turn, ids, turn.start, **asked)
    assert said["rollouts"] == again["rollouts"] == 4
    traces, given = stored(home, turn.run_id)
    assert len(traces) == len({one.id for one in traces}) == 4, "done again, kept once"
    environment = environment_of(project_of(turn))
    for trace in traces:
        assert trace.attributes["ended"] in ("answered", "budget: attempts")
        assert trace.fidelity == "trainable"
        calls = model_spans(trace)
        checks = [span for span in trace.spans if span.name == "check"]
        assert len(calls) == len(checks) == trace.attributes["state"]["checked"] >= 1
        for call in calls:
            assert call.call is not None and call.call.deployment == turn.champion
            tokens = call.call.choices[0].tokens
            assert tokens is not None and tokens.logprobs is not None
            assert len(tokens.logprobs) == len(tokens.completion_ids) > 0
        of_this = {one.reward: one.value for one in given if one.trace_id == trace.id}
        assert of_this["checked"] == len(checks) and of_this["correct"] in (0.0, 1.0)
        assert (of_this["correct"] == 1.0) is (trace.attributes["ended"] == "answered")
    assert environment.digest in {one.grader for one in given}
    rows = list(candidates(msgspec.structs.replace(turn, sequence=turn.sequence)))
    assert len(rows) == 4
    by_trace = {trace.id: model_spans(trace)[-1] for trace in traces}
    for row in rows:
        last = by_trace[row.trace_id]
        assert row.span_id == last.id and last.call is not None
        assert row.messages == last.call.input, "the final answer with its whole prompt"
        assert row.tokens == last.call.choices[0].tokens and row.reward is not None


@pytest.mark.slow
def test_an_environment_whose_engine_is_gone_fails_the_step(
    home: Home, project_folder: Path
) -> None:
    from environments.rollouts import Sampler, sample
    from flywheel.project import load_project
    from tasks.playing import opens
    from tasks.turns import environment_of

    (project_folder / "environment.py").write_text(TOOLS)
    environment = environment_of(load_project(project_folder))
    sampler = Sampler("http://127.0.0.1:9", "base")
    problem = Problem(environment="sorting", messages=(say("user", "1"),), answer="1")
    with pytest.raises(EngineError, match="all 1 episodes failed"):
        sample(
            environment, [problem], sampler, run_id="r", project="p", samples=1, temperature=1.0,
            max_tokens=8, opens=opens(environment, sampler, home.root / "workspaces"),
        )  # fmt: skip

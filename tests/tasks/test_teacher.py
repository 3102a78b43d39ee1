"""A run that learns from a teacher at a URL: its answers are sampled, graded, curated, learnt."""

from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.project import load_project
from flywheel.records import Problem, say
from storage.committer import commit
from storage.curate import curate, rule_specs
from storage.inbox import Inbox
from tasks.candidates import candidates
from tasks.sample import sample_chunk, teacher_of
from tasks.turns import Turn
from tests.tasks.answering import answering
from trainer.algorithms.contract import Context
from trainer.algorithms.teacher import teacher
from trainer.models import load_tokenizer
from trainer.render import renderer_for

ENVIRONMENT = """
from environments.define import Environment, reward


class Desk(Environment):
    @reward()
    def right(self, answer, problem):
        return answer == problem.answer
"""
BASE = Path(__file__).resolve().parents[1] / "sorting" / "base"
START = Deployment(name="desk-v0", project="desk", version=0, base_model=str(BASE))


def turn(folder: Path, section: str) -> Turn:
    (folder / "environment.py").write_text(ENVIRONMENT)
    (folder / "flywheel.toml").write_text(
        'name = "desk"\nmodel.base = "base"\nenvironment.path = "environment.py:Desk"\n'
        f'[train]\nalgorithm = "teacher"\n[train.teacher]\n{section}'
    )
    return Turn(
        run_id="run",
        project="desk",
        folder=str(folder),
        start=START,
        configuration="c",
        sequence=1 << 40,
        snapshot="s",
    )


def upper(body: dict[str, Any]) -> str:
    """It knows all but one of the answers."""
    said = str(body["messages"][-1]["content"])
    return said if said == "b" else said.upper()


def posed(home: Home) -> list[str]:
    some = [
        Problem(
            environment="desk",
            messages=(say("user", word),),
            answer=word.upper(),
            text=word,
            truth_from="ground_truth",
        )
        for word in "abc"
    ]
    Inbox(home).append(some)
    commit(home)
    return [one.id for one in some]


def test_a_teachers_right_answers_become_what_is_learnt(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEACHERS_KEY", "it-is-secret")
    with answering(upper) as model:
        section = f'url = "{model.url}"\nmodel = "wise"\nkey_env = "TEACHERS_KEY"\n'
        asked = turn(tmp_path, section)
        step: Any = sample_chunk
        sampled = step.fn(asked, 0, posed(home))
        requests = model.requests
    assert sampled["rollouts"] == 12 and sampled["reward"] == 8
    assert {one["model"] for one in requests} == {"wise"}
    # It may be of any make: nothing is asked that only our engines know.
    assert not {"flywheel_gang", "return_token_ids", "logprobs"} & requests[0].keys()
    rows = list(candidates(asked))
    assert {row.tokens for row in rows} == {None} and len(rows) == 12
    project = load_project(tmp_path)
    kept = curate(rows, rule_specs(project.curate), [], 0.7).rows
    assert sorted(row.completion.text for row in kept) == ["A", "C"]
    rendering = renderer_for(load_tokenizer(BASE))
    prepared = teacher(list(kept), Context(rendering, project.train))
    assert len(prepared.samples) == 2 and not prepared.refused


def test_a_teacher_that_is_not_named_or_has_no_key_is_refused(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    turn(tmp_path, 'url = "http://127.0.0.1:9"\n')
    with pytest.raises(UsageError, match="Name it"):
        teacher_of(load_project(tmp_path), START)
    turn(tmp_path, 'url = "http://127.0.0.1:9"\nmodel = "wise"\nkey_env = "NO_KEY"\n')
    with pytest.raises(UsageError, match="NO_KEY"):
        teacher_of(load_project(tmp_path), START)

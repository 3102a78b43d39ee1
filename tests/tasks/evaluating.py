"""A small environment and an evaluation of it in this process, for tests of evaluations."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments.load import load_environment
from flywheel.home import Home
from serving.interception import Served
from tasks.eval import Setting, evaluate
from tasks.eval_plan import Plan, new_run
from tests.tasks.answering import Model

SOURCE = """
from environments.define import Environment, metric, reward, step_reward
from environments.tasksets.contract import TaskSet

class Sums(Environment):
    tasks = TaskSet(path="problems.jsonl", heldout_share=1.0, near_duplicate=None)

    @reward()
    def right(self, problem, answer):
        if answer == "nan":
            return float("nan")
        return str(problem.answer) == answer

    @metric
    def words(self, answer):
        return len(answer.split())

    @step_reward()
    def polite(self, span):
        return 0.5
"""
GROUPED = (
    SOURCE
    + """
class Shortest(Sums):
    from environments.define import group_reward

    @group_reward()
    def shortest(self, group):
        return [float(len(group))] * len(group)

    @group_reward()
    def bonus(self, group):
        return [-9.0] * len(group)
"""
)


def write_sums(folder: Path, problems: int = 4, source: str = SOURCE) -> Path:
    """Problems from 10 on: the larger of two numbers, which is the last one where it is odd."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "environment.py").write_text(source)
    rows = []
    for number in range(10, 10 + problems):
        other = number + (5 if number % 2 else -5)
        prompt = f"Say the larger of {number} and {other}"
        slice_ = "odd" if number % 2 else "even"
        rows.append({"prompt": prompt, "answer": str(max(number, other)), "slice": slice_})
    (folder / "problems.jsonl").write_text("\n".join(json.dumps(one) for one in rows))
    return folder


def setting(
    tmp_path: Path, *, problems: int = 4, samples: int = 2, class_: str = "Sums", **more: Any
) -> Setting:
    """A new run in a home of its own."""
    source = GROUPED if class_ != "Sums" else SOURCE
    folder = write_sums(tmp_path / "environment", problems, source)
    environment = load_environment(f"environment.py:{class_}", folder)
    home = Home(tmp_path / "home")
    plan = Plan(
        environment="sums",
        name=environment.name,
        digest=environment.digest,
        model="http://model",
        served="scripted",
        samples=samples,
        project=environment.name,
    )
    known = list(environment.problems().problems)
    return Setting(home, new_run(home, plan), plan, environment, known, **more)


def evaluated(made: Setting, model: Model) -> dict[str, Any]:
    return evaluate(made, Served(model.url, "scripted", tokens=False))


def lines(made: Setting) -> Sequence[dict[str, Any]]:
    text = (made.folder / "results.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]

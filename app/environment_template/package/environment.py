"""Short questions whose answer is one number."""

import re
from collections.abc import Sequence

from pydantic import Field

from environments.define import Environment
from environments.marks import metric, reward
from environments.tasksets.contract import TaskSet
from flywheel.records import Message, Problem

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class Template(Environment):
    """Says what a good answer to such a question is."""

    version = "1"
    """Goes up whenever a reward changes: grades of both versions then stand side by side."""
    tasks = TaskSet(path="problems.jsonl")

    class Config(Environment.Config):
        tolerance: float = Field(0.0, ge=0)
        """How far off a number may be."""

    config: Config

    @reward()
    def right(self, problem: Problem, answer: str) -> float:
        """1 where the last number of the answer is the true one."""
        found = _NUMBER.findall(answer.replace(",", ""))
        if not found:
            return 0.0
        return float(abs(float(found[-1]) - float(problem.answer)) <= self.config.tolerance)

    @metric
    def words(self, answer: str) -> int:
        """How long it is: looked at, never trained on."""
        return len(answer.split())

    def wrong(self, problem: Problem) -> Sequence[str | list[Message]]:
        """Near misses: the next number, the right one unsaid, none at all."""
        return [str(float(problem.answer) + 1), "It is the right number.", ""]

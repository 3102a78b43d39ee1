"""The tests' environment: a few digits in, the same digits sorted out."""

from environments.define import Environment, metric, reward
from flywheel.records import Choice, Problem


class Sorting(Environment):
    @reward()
    def correct(self, answer: str, choice: Choice, problem: Problem) -> bool:
        return choice.finish_reason == "stop" and answer.strip() == problem.answer

    @metric
    def same_digits(self, answer: str, problem: Problem) -> bool:
        return sorted(answer.split()) == sorted(problem.answer.split())

    def slice(self, problem: Problem) -> str:
        return f"length {len(problem.text.split())}"

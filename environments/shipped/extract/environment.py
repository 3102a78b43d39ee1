"""Figures of a financial statement, read into one JSON object in whole currency units.

What each field is worth is told three ways: `complete` is the outcome (all fields right), `fields`
the share of them that are, and `fields_at` the same share as a step reward of each model call, so
that a harness of several turns is credited where a figure became right. One metric a field
(`revenue_right` …) says which. The trap of a statement is its slice.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from environments.define import Environment
from environments.marks import metric, reward, step_reward
from environments.shipped.extract.statement import FIELDS, Statement, statements
from environments.tasksets.contract import TaskSet
from flywheel.records import Choice, Message, Problem, Span, say

COUNT = 240
HOW = (
    "Read the figures of the latest year out of the statement, and answer with one JSON object "
    f"that has exactly these keys: {', '.join(FIELDS)}. Give each as a number in whole currency "
    "units, whatever the tables are in. Losses are negative; cost_of_sales and capital_expenditure "
    "are positive. prior_revenue is the revenue of the year before as it is valid now; net_profit "
    "is the profit or loss for the year; equity is total equity."
)
_FENCED = re.compile(r"```(?:json)?\s*(\{.*?\})\s*```", re.DOTALL)


def _right(field: str) -> Callable[..., Any]:
    @metric
    def right(self: "Extract", answer: str, problem: Problem) -> bool:
        return self.near(parsed(answer).get(field), problem.answer[field], problem)

    return right


class Extract(Environment):
    """Slices: the traps."""

    tasks = TaskSet(kind="made", near_duplicate=None)
    # Statements share their words; their figures are what is asked.

    class Config(Environment.Config):
        tolerance: float = Field(0.0005, ge=0, lt=0.5)
        """How far a figure may be from the true one, as a share of it. Half of the tables' last
        digit is always forgiven."""

    config: Config

    def made(self, tasks: TaskSet) -> Iterator[Problem]:
        return map(self._given, statements(tasks.limit or COUNT, tasks.seed))

    def _given(self, one: Statement) -> Problem:
        return Problem(
            environment=self.name,
            messages=(say("system", HOW), say("user", one.text)),
            answer=one.truth,
            slice=one.trap,
            truth_from="ground_truth",
            attributes={"unit": one.unit, "mistakes": one.mistakes},
        )

    def near(self, value: Any, true: float, problem: Problem) -> bool:
        """Whether a figure is the true one, within the tolerance; the sign always counts."""
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e18:
            return False
        half = int(problem.attributes.get("unit", 1)) / 2 if problem.attributes else 0.5
        within = max(self.config.tolerance * abs(true), half)
        same_sign = value == 0 or true == 0 or (value > 0) == (true > 0)
        return math.isfinite(value) and same_sign and abs(value - true) <= within

    def share(self, answer: str, problem: Problem) -> float:
        given = parsed(answer)
        right = [self.near(given.get(key), true, problem) for key, true in problem.answer.items()]
        return sum(right) / len(right)

    @reward()
    def complete(self, answer: str, choice: Choice, problem: Problem) -> bool:
        """Every field is right, no other is there, and the answer ended by itself."""
        same = parsed(answer).keys() == problem.answer.keys()
        return choice.finish_reason == "stop" and same and self.share(answer, problem) == 1

    @reward(0.5)
    def fields(self, answer: str, problem: Problem) -> float:
        return self.share(answer, problem)

    @step_reward(0.5)
    def fields_at(self, span: Span, problem: Problem) -> float:
        said = span.call.choices[0].message.text if span.call and span.call.choices else ""
        return self.share(said, problem)

    @metric
    def valid_json(self, answer: str) -> bool:
        return bool(parsed(answer))

    revenue_right = _right("revenue")
    cost_of_sales_right = _right("cost_of_sales")
    operating_profit_right = _right("operating_profit")
    net_profit_right = _right("net_profit")
    total_assets_right = _right("total_assets")
    equity_right = _right("equity")
    prior_revenue_right = _right("prior_revenue")
    capital_expenditure_right = _right("capital_expenditure")

    def wrong(self, problem: Problem) -> Sequence[str | list[Message]]:
        """What one answers who fell for a trap; the truth in words; nothing."""
        mistakes: Mapping[str, Any] = problem.attributes.get("mistakes", {})
        words = ", ".join(f"{key} {value}" for key, value in problem.answer.items())
        return (*(json.dumps(figures) for figures in mistakes.values()), words, "{}")


def parsed(answer: str) -> dict[str, Any]:
    """The object that an answer is, whole or in its one code block; {} = it is none."""
    fenced = _FENCED.findall(answer)
    text = fenced[0] if len(fenced) == 1 else answer
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

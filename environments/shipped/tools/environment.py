"""Function calling: the right functions with the right arguments, in any order, or none at all.

Problems are made in BFCL's categories from a seed; a path to BFCL's own files (`tasks.path`, such
as bfcl-eval's data folder) takes their place. The answer is the list of wanted calls, each argument
with the values that it may have (`environments.tasksets.bfcl`).
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from pydantic import field_validator

from environments.define import Environment
from environments.marks import metric, reward, step_reward
from environments.shipped.tools.calls import made, right
from environments.shipped.tools.made import CATEGORIES, Asked, asked
from environments.tasksets.contract import TaskSet
from flywheel.records import Choice, Message, Problem, Span, ToolCall, Trace, model_spans, say

COUNT = 400


class Tools(Environment):
    """Slices: the categories."""

    tasks = TaskSet(kind="made", near_duplicate=None)
    # One wish with other words in it is another problem, though most of its words are the same.

    class Config(Environment.Config):
        categories: tuple[str, ...] = CATEGORIES
        """Of the problems that are made."""

        @field_validator("categories")
        @classmethod
        def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
            if not value or not set(value) <= set(CATEGORIES):
                raise ValueError(f"some of {', '.join(CATEGORIES)}")
            return value

    config: Config

    def made(self, tasks: TaskSet) -> Iterator[Problem]:
        found = asked(tasks.limit or COUNT, tasks.seed, self.config.categories)
        return map(self._given, found)

    def _given(self, one: Asked) -> Problem:
        return Problem(
            environment=self.name,
            messages=(say("user", one.text),),
            tools=tuple(one.tools),
            answer=one.calls,
            slice=one.category,
            truth_from="ground_truth",
        )

    @reward()
    def correct(self, trace: Trace, problem: Problem, choice: Choice) -> bool:
        """Every wanted call and no other; where none is wanted, an answer without calls."""
        if choice.finish_reason not in ("stop", "tool_calls"):
            return False
        calls = [call for span in model_spans(trace) for call in _calls(span)]
        met = right(calls, problem.answer, problem.tools)
        return all(met) and len(met) == len(problem.answer)

    @step_reward(0.5)
    def calls_right(self, span: Span, problem: Problem) -> float:
        """Of one model call: the share of its calls that are wanted. Where it makes none, 1 if none
        is wanted."""
        calls = _calls(span)
        if not calls:
            return float(not problem.answer)
        return sum(right(calls, problem.answer, problem.tools)) / len(calls)

    @metric
    def names_right(self, trace: Trace, problem: Problem) -> bool:
        """The right functions, whatever their arguments."""
        calls = [call for span in model_spans(trace) for call in _calls(span)]
        return sorted(one.name for one in calls) == sorted(one["name"] for one in problem.answer)

    def gold(self, problem: Problem) -> str | list[Message] | None:
        if problem.answer is None:
            return None
        if not problem.answer:
            return "None of these functions can do that."
        return _said([_first(one) for one in problem.answer])

    def wrong(self, problem: Problem) -> Sequence[str | list[Message]]:
        """One call less, one call twice, an argument with another value, one that nobody asked
        for, and words instead of calls."""
        calls = [_first(one) for one in problem.answer or ()]
        if not calls:
            name = problem.tools[0]["function"]["name"]
            return (_said([ToolCall(id="call_0", name=name, arguments="{}")]),)
        first, *rest = calls
        given = json.loads(first.arguments)
        some = next(iter(given), "nothing")
        other = _with(first, given | {some: [given.get(some), "other"]})
        more = _with(first, given | {"unasked": 1})
        wrong: list[str | list[Message]] = ["I have done all of that.", _said([*calls, first])]
        wrong += [_said(rest)] if rest else []
        return (*wrong, _said([other, *rest]), _said([more, *rest]))


def _calls(span: Span) -> list[ToolCall]:
    return made(span.call.choices[0].message) if span.call and span.call.choices else []


def _first(wanted: dict[str, Any]) -> ToolCall:
    """The call with the first of the values that each argument may have."""
    given = {
        name: _plain(allowed[0])
        for name, allowed in wanted["arguments"].items()
        if allowed and allowed[0] != ""
    }
    return ToolCall(name=wanted["name"], arguments=json.dumps(given))


def _plain(value: Any) -> Any:
    """Of an object whose keys hold lists of allowed values, the first ones."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    options = {key: one if isinstance(one, list) else [one] for key, one in value.items()}
    return {key: _plain(one[0]) for key, one in options.items() if one and one[0] != ""}


def _with(call: ToolCall, arguments: dict[str, Any]) -> ToolCall:
    return msgspec.structs.replace(call, arguments=json.dumps(arguments))


def _said(calls: Sequence[ToolCall]) -> list[Message]:
    named = (msgspec.structs.replace(one, id=f"call_{at}") for at, one in enumerate(calls))
    return [Message(role="assistant", parts=tuple(named))]

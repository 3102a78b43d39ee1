"""Grades traces with an environment, recorded or fresh, without running the model again.

Enter: traces, each with its problem and, for group rewards, all traces of that problem. Leave:
grades in the order of the environment's methods. Invariant: what cannot be graded is null with
its reason, never 0, and no reward can hang, kill, or change what it is given in this process:
rewards run in a forked child (`environments.isolation`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from environments.define import Environment, Method
from environments.isolation import Call, run_isolated
from flywheel.records import Grade, Problem, Span, Trace, Truncated, last_answer, model_spans

GRADED = ("reward", "metric", "group_reward", "step_reward")


class Item(NamedTuple):
    trace: Trace
    problem: Problem | None = None
    """None = not known, or not one of this environment."""
    group: Sequence[Trace] | None = None
    """All traces of the problem in one run, this one among them."""


def grade(
    environment: Environment,
    trace: Trace,
    problem: Problem | None = None,
    group: Sequence[Trace] | None = None,
) -> list[Grade]:
    """One trace's grades. A batch costs far less by `grade_all`: one fork for all of it."""
    return grade_all(environment, [Item(trace, problem, group)])[0]


def grade_all(environment: Environment, items: Sequence[Item]) -> list[list[Grade]]:
    """The grades of each item, parallel to `items`."""
    calls: list[Call] = []
    slots: list[tuple[int, Method, str | None, str | None]] = []
    methods = [method for method in environment.methods if method.mark.kind in GRADED]
    for number, item in enumerate(items):
        silent = why_ungradable(item.trace)
        for method in methods:
            for span in _spans(method, item.trace):
                reason = silent or _why_not(method, item)
                slots.append((number, method, span.id if span else None, reason))
                if reason is None:
                    calls.append(Call(method, item.trace, item.problem, item.group, span))
    results = iter(run_isolated(environment, calls))
    graded: list[list[Grade]] = [[] for _ in items]
    for number, method, span_id, reason in slots:
        value, why = (None, reason) if reason is not None else next(results)
        graded[number].append(_grade(environment, items[number], method, span_id, value, why))
    return graded


def score(grades: Sequence[Grade]) -> float | None:
    """The weighted mean of a trace's rewards; metrics and step rewards do not enter.

    None where there is no reward, or where any of them could not be given.
    """
    rewards = [grade for grade in grades if grade.weight > 0 and grade.span_id is None]
    total = sum(grade.weight for grade in rewards)
    parts = [grade.weight * grade.value for grade in rewards if grade.value is not None]
    if not rewards or len(parts) < len(rewards):
        return None
    return sum(parts) / total


def why_ungradable(trace: Trace) -> str | None:
    """Why a trace says nothing about its model; None = it has an answer to be judged."""
    calls, choice = model_spans(trace), last_answer(trace)
    if failed := trace.attributes.get("failed"):
        return f"the episode failed ({trace.attributes.get('failed_by')}): {str(failed)[-500:]}"
    if calls and calls[-1].error:
        return f"the model call failed: {calls[-1].error[:500]}"
    if choice is None:
        return "no answer was recorded"
    if not choice.finish_reason and trace.origin in ("production", "rollout", "evaluation"):
        return "the answer was cut: its end is not recorded"
    if any(isinstance(part, Truncated) for part in choice.message.parts):
        return "the answer was over the size limit and is not whole"
    return None


def _spans(method: Method, trace: Trace) -> Sequence[Span | None]:
    return model_spans(trace) if method.mark.kind == "step_reward" else (None,)


def _why_not(method: Method, item: Item) -> str | None:
    if method.needs_truth and item.problem is None:
        return "no problem is known for this trace"
    if method.needs_truth and item.problem is not None and item.problem.answer is None:
        return str(item.problem.attributes.get("truth", "no known answer"))
    if "group" in method.arguments and not item.group:
        return "needs all traces of its problem"
    return None


def _grade(
    environment: Environment,
    item: Item,
    method: Method,
    span_id: str | None,
    value: float | None,
    reason: str | None,
) -> Grade:
    problem = item.problem
    rests_on_truth = value is not None and method.needs_truth and problem is not None
    return Grade(
        trace_id=item.trace.id,
        reward=method.name,
        value=value,
        weight=method.mark.weight,
        reason=reason,
        grader=environment.digest,
        problem_id=problem.id if problem else None,
        span_id=span_id,
        confirmed_by=problem.truth_from if rests_on_truth and problem else None,
    )

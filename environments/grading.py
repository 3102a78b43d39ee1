"""Grades traces with an environment, recorded or fresh, without running the model again.

Enter: traces, each with its problem and, for group rewards, all traces of that problem. Leave:
grades in the order of the environment's methods. Invariant: what cannot be graded is null with
its reason, never 0, and no reward can hang, kill, or change what it is given in this process:
rewards run in a forked child (`environments.isolation`).
"""

import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from environments.asked import Asked, Item, why_ungradable
from environments.board import Outcome
from environments.define import Environment, Method
from environments.isolation import run_isolated
from flywheel.records import Grade, Problem, Trace

if TYPE_CHECKING:
    from environments.judges.contract import Judge

__all__ = ["Graded", "Item", "grade", "grade_all", "grade_recorded", "score", "why_ungradable"]
BATCH = 2000
"""Traces in one child."""


def grade(
    environment: Environment,
    trace: Trace,
    problem: Problem | None = None,
    group: Sequence[Trace] | None = None,
) -> list[Grade]:
    """One trace's grades. A batch costs far less by `grade_all`: one fork for all of it."""
    return grade_all(environment, [Item(trace, problem, group)])[0]


def grade_all(
    environment: Environment,
    items: Sequence[Item],
    *,
    methods: Sequence[Method] | None = None,
    cache: Path | None = None,
) -> list[list[Grade]]:
    """The grades of each item, parallel to `items`.

    Args:
        methods: only these of the environment's; None = all that grade.
        cache: where environments of grader scripts lie; None = in the home.
    """
    with _without_collecting():
        asked = Asked(environment, methods)
        for item in items:
            asked.add(item)
        outcomes = run_isolated(environment, asked.lanes, asked.slots)
        if asked.rows:
            _ask_scripts(environment, asked, outcomes, cache)
        return asked.grades(outcomes)


def _ask_scripts(
    environment: Environment, asked: Asked, outcomes: list[Outcome], cache: Path | None
) -> None:
    from environments.graders.interpreter import interpreter
    from environments.graders.session import run_script
    from flywheel.settings import Settings

    at = cache or Settings().at().cache
    for script in environment.grader_scripts:
        rows = list(asked.rows.get(script.path, {}).values())
        if not rows:
            continue
        given = [(item.trace, item.problem) for item, _ in rows]
        found = run_script(script, interpreter(script, at), given, environment.long_limit_s)
        for (_, keys), one in zip(rows, found, strict=True):
            for name, slot in keys.items():
                outcomes[slot] = one[name]


class Graded(NamedTuple):
    trace: Trace
    grades: list[Grade]


def grade_recorded(
    environment: Environment,
    recorded: Iterable[tuple[Trace, Problem | None]],
    *,
    judge: "Judge | None" = None,
    size: int = BATCH,
) -> Iterator[list[Graded]]:
    """Grades of any number of traces, in batches of about `size`, one fork each.

    Where the environment has group rewards, all traces of one problem (in one run) are each other's
    group and lie in one batch; all of `recorded` is then read before the first is graded.
    """
    methods = [method.mark.kind for method in environment.methods]
    groups: dict[tuple[str, str], list[Trace]] = {}
    if "group_reward" in methods:
        recorded = sorted(recorded, key=lambda one: _group(*one))
        for trace, problem in recorded:
            groups.setdefault(_group(trace, problem), []).append(trace)
    batch: list[Item] = []
    for trace, problem in recorded:
        group = groups.get(_group(trace, problem)) if groups and problem else None
        if len(batch) >= size and (group is None or trace is group[0]):
            yield _graded(environment, batch)
            batch = []
        batch.append(Item(trace, problem, group, judge=judge))
    if batch:
        yield _graded(environment, batch)


def _group(trace: Trace, problem: Problem | None) -> tuple[str, str]:
    return (trace.run_id or "", problem.id if problem else "")


def _graded(environment: Environment, batch: Sequence[Item]) -> list[Graded]:
    return [
        Graded(item.trace, grades)
        for item, grades in zip(batch, grade_all(environment, batch), strict=True)
    ]


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Thousands of records are made at once and all are kept: looking for garbage among them took
    four fifths of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


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

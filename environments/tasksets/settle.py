"""Gives each problem of a set its side, and leaves out what would stand on both.

Enter: problems as a reader draws them. Leave: those that stay. Invariant: which problems stay does
not depend on their order, and a held-out one never gives way: where a training problem is a
held-out one, or nearly, it goes.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from environments.define import Environment
from environments.near import NearIndex
from environments.split import side_of
from environments.tasksets.contract import Given, Options, Read, Side, TaskSet
from flywheel.errors import BadRecord
from flywheel.records import Problem

MAX_REJECTS = 1000
"""Kept with their places; further ones are counted."""


def settle(
    drawn: Iterable[Given | BadRecord], environment: Environment, tasks: TaskSet, options: Options
) -> Read:
    rejects: list[BadRecord] = []
    left_out: Counter[str] = Counter()
    found: dict[str, tuple[Problem, Side]] = {}
    read = 0
    for one in drawn:
        if isinstance(one, BadRecord):
            left_out["not readable"] += 1
            rejects += [one] if len(rejects) < MAX_REJECTS else []
            continue
        if tasks.limit is not None and read >= tasks.limit:
            break
        read += 1
        problem = _posed(one.problem, environment)
        own = one.side if options.own_split else None
        _take(found, problem, _side(problem, own, tasks), left_out)
    return Read(_apart(found.values(), tasks.near_duplicate, left_out), rejects, left_out)


def _posed(problem: Problem, environment: Environment) -> Problem:
    """As the environment puts it: its hooks see the problem as it stands."""
    posed = environment.posed(problem)
    if not posed.text:
        posed = msgspec.structs.replace(posed, text=environment.text(posed.messages))
    if posed.slice in ("", "all"):
        posed = msgspec.structs.replace(posed, slice=environment.slice(posed))
    return posed


def _side(problem: Problem, own: Side | None, tasks: TaskSet) -> Side:
    if tasks.heldout_share == 1 or problem.slice in tasks.heldout_slices:
        return "heldout"
    return own or side_of(problem, tasks)


def _take(
    found: dict[str, tuple[Problem, Side]], problem: Problem, side: Side, left_out: Counter[str]
) -> None:
    before = found.get(problem.id)
    if before is None:
        found[problem.id] = (problem, side)
        return
    torn = before[0].answer != problem.answer
    left_out["the same prompt with another answer" if torn else "the same problem again"] += 1
    if torn:
        why = {"truth": "the set states different answers"}
        nothing = msgspec.structs.replace(
            before[0], answer=None, truth_from=None, attributes=before[0].attributes | why
        )
        before = found[problem.id] = (nothing, before[1])
    if side == "heldout":
        found[problem.id] = (before[0], side)


def _apart(
    found: Iterable[tuple[Problem, Side]], near_duplicate: float | None, left_out: Counter[str]
) -> list[Problem]:
    sided = [msgspec.structs.replace(problem, split=side) for problem, side in found]
    heldout = [problem for problem in sided if problem.split == "heldout"]
    owners = {owner for problem in heldout for owner in _owners(problem)}
    texts = NearIndex(near_duplicate or 1.0)
    if len(heldout) < len(sided):
        for problem in heldout:
            texts.add(problem.text)
    kept = []
    for problem in sided:
        trained = problem.split == "train"
        if trained and not owners.isdisjoint(_owners(problem)):
            left_out["of a held-out user or conversation"] += 1
        elif trained and texts.near(problem.text):
            left_out["nearly a held-out problem"] += 1
        else:
            kept.append(problem)
    return kept


def _owners(problem: Problem) -> list[tuple[str, str]]:
    named = (("user", problem.user), ("conversation", problem.conversation))
    return [(kind, key) for kind, key in named if key]

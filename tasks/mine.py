"""Mine: recorded traces whose truth is known become problems, split into training and held out."""

from typing import Any

import msgspec

from flywheel.project import Project
from flywheel.records import Problem
from tasks.problems import PICKED, read_into, sided_as_before
from tasks.step import step
from tasks.turns import Turn, environment_of, home, note, project_of


@step(minutes=30)
def mine_problems(turn: Turn) -> dict[str, Any]:
    """Stores the snapshot's problems; returns the ids that this turn samples and evaluates.

    Returns: {"train": [id …], "heldout": [id …], "mined": count}, each list in a fixed order.
    """
    from environments.mining import choose
    from storage.committer import commit
    from storage.inbox import Inbox

    project = project_of(turn)
    problems = mined(project, turn.sequence, turn.at)
    Inbox(home()).append(problems, name=f"problems-{turn.run_id}")
    commit(home())
    train = [one for one in problems if one.split == "train"]
    seen = sampled_before(turn)
    found = {
        "train": [one.id for one in choose(train, project.problems.max_train, seen)],
        "heldout": held_out(project, problems),
        "mined": len(problems),
    }
    note(turn, "problems", found)
    return found


def mined(project: Project, sequence: int, at: int | None = None) -> list[Problem]:
    """The problems that recorded traces pose, as they stood at that sequence of the ledger, with
    what `flywheel problems mine` found out about them; of traces that may be learnt from at that
    moment."""
    from environments.mining import Traffic
    from storage.queries import problems as stored

    traffic = Traffic(environment_of(project))
    read_into(traffic, home(), project, project.traffic, sequence, at)
    found = sided_as_before(traffic, home(), project)
    before = {one.id: one for one in stored(home(), traffic.environment.name)}
    return [_known(one, before.get(one.id)) for one in found]


def _known(problem: Problem, before: Problem | None) -> Problem:
    """With its cluster, difficulty and pick, which a turn does not work out anew."""
    if before is None:
        return problem
    kept = {name: before.attributes[name] for name in PICKED if name in before.attributes}
    return msgspec.structs.replace(problem, attributes=problem.attributes | kept)


def held_out(project: Project, problems: list[Problem]) -> list[str]:
    """Ids of those that models are compared on, in a fixed order."""
    from environments.mining import choose

    sided = [one for one in problems if one.split == "heldout"]
    # Where answers are judged, no right one need be known.
    chosen = choose(sided, project.problems.max_heldout, known=not project.judges)
    return [one.id for one in chosen]


def sampled_before(turn: Turn) -> frozenset[str]:
    """Problems that earlier turns sampled: the others come first."""
    from storage.queries import sampled_problems

    return sampled_problems(home(), turn.project, before_run=turn.run_id)

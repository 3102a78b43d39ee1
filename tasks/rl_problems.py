"""What a run that samples is trained on: environments and their training problems, as a dataset.

Enter a turn and the problems that were mined for it; leave rows without answers, one a problem,
which pass the leakage check as any row does. Invariant: no problem of the run touches a held-out
one, of any of its environments.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flywheel.errors import ProjectError
from flywheel.ids import canonical, digest
from flywheel.project import Project
from flywheel.records import Message, Problem
from flywheel.rows import TrainingRow
from flywheel.train_section import MixtureEntry
from tasks.private import privacy_of
from tasks.turns import Turn, environment_of, home, project_of

if TYPE_CHECKING:
    from environments.define import Environment

POSED = "problem"
"""Origin of a row that has no answer yet."""


def is_online(project: Project) -> bool:
    """Whether the project's algorithm samples while it trains."""
    from trainer.algorithms import ALGORITHMS

    return ALGORITHMS[project.train.algorithm].online


def mixture_of(project: Project) -> tuple[MixtureEntry, ...]:
    """Its environments with their weights; the project's own where it names none."""
    return project.train.mixture or (MixtureEntry(environment=project.environment),)


def environments_of(project: Project) -> "dict[str, Environment]":
    """Name -> environment, in the order of the mixture.

    Raises:
        ProjectError: two have one name.
    """
    from environments.load import load_environment

    found: dict[str, Environment] = {}
    for entry in mixture_of(project):
        section = entry.environment
        made = load_environment(section.path, project.folder, section.config)
        if made.name in found:
            raise ProjectError(
                f"train.mixture: two environments are named {made.name!r}; a class of its own "
                "gives one another name"
            )
        found[made.name] = made
    return found


def posed(turn: Turn, ids: Sequence[str]) -> dict[str, list[Problem]]:
    """Environment -> its training problems: those that were mined, of the project's own, and the
    training side of the others' task sets."""
    from environments.load import problems_of
    from environments.mining import choose
    from storage.queries import problems as stored

    project, found = project_of(turn), {}
    own, known = environment_of(project).name, {one.id: one for one in stored(home(), ids=ids)}
    for name, environment in environments_of(project).items():
        if name == own and ids:
            found[name] = [known[one] for one in ids]
            continue
        sided = [one for one in problems_of(environment).problems if one.split == "train"]
        truth = any(one.needs_truth for one in environment.methods if one.mark.weight)
        chosen = choose(sided, project.problems.max_train) if truth else sided
        found[name] = chosen[: project.problems.max_train]
    if (privacy := privacy_of(turn)) is not None:
        # What is sampled on while it trains is never seen as rows again.
        cleaned = {name: map(privacy.problem, several) for name, several in found.items()}
        found = {
            name: list({one.id: one for one in several}.values())
            for name, several in cleaned.items()
        }
    return found


def held_out_of(project: Project) -> list[Problem]:
    """Every held-out problem that the run must not touch."""
    from environments.load import problems_of
    from storage.queries import problems as stored

    found = {}
    for name, environment in environments_of(project).items():
        own = problems_of(environment).problems if environment.tasks is not None else ()
        for one in (*stored(home(), name, split="heldout"), *own):
            if one.split == "heldout":
                found[one.id] = one
    return list(found.values())


def rows_of(problems: dict[str, list[Problem]]) -> list[TrainingRow]:
    """A row for each problem, with no answer yet."""
    return [_row(one) for several in problems.values() for one in several]


def _row(problem: Problem) -> TrainingRow:
    return TrainingRow(
        trace_id=problem.trace_id or problem.id,
        span_id="",
        messages=problem.messages,
        completion=Message(role="assistant"),
        problem_id=problem.id,
        slice=problem.slice,
        conversation=problem.conversation,
        user=problem.user,
        text=problem.text,
        tools=problem.tools,
        origin=POSED,
        environment=problem.environment,
        truth=None if problem.answer is None else canonical(problem.answer).decode(),
    )


def store(turn: Turn, problems: dict[str, list[Problem]]) -> None:
    """Those of task sets become records too, so that rollouts name problems that the store has."""
    from storage.committer import commit
    from storage.inbox import Inbox

    given = [one for several in problems.values() for one in several]
    Inbox(home()).append(given, name=f"posed-{turn.run_id}-{digest([one.id for one in given])}")
    commit(home())


def problems_in(dataset: str) -> dict[str, list[Problem]]:
    """Environment -> the problems of a dataset that was curated of problems, in its order."""
    from storage.datasets import read_dataset
    from storage.queries import problems as stored

    ids = [str(row.problem_id) for row in read_dataset(home(), dataset)]
    known = {one.id: one for one in stored(home(), ids=ids)}
    found: dict[str, list[Problem]] = {}
    for one in ids:
        found.setdefault(known[one].environment, []).append(known[one])
    return found

"""What `grade --env` and `replay` have in common: who grades, and which traces.

Without an environment's name it is the project's own: of the folder that was given, else of the
project that the trace belongs to, where the home knows its folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.project import Project
from tasks.regrade import Judging, Narrowed

if TYPE_CHECKING:
    from environments.define import Environment
    from environments.grading import Item
    from environments.judges.judge import ModelJudge


class Grader(NamedTuple):
    environment: "Environment"
    project: Project | None
    judging: Judging
    judge: "ModelJudge | None"


def grader_of(
    home: Home, name: str, folder: Path | None, pairs: Sequence[str], trace: str | None = None
) -> Grader:
    """
    Args:
        name: as `flywheel eval` takes it; "" = the project's own.
        trace: whose project it is, where nothing else says.

    Raises:
        UsageError: it is not to be found, or does not load.
    """
    from tasks.eval_plan import configuration, loaded

    if not name and folder is None:
        folder = _folder_of(home, trace)
    environment, project = loaded(name, configuration(pairs), folder)
    return _grader(home, environment, project)


def _folder_of(home: Home, trace: str | None) -> Path:
    from flywheel.known import known
    from storage.queries import traces

    found = next(traces(home, ids=[trace]), []) if trace else []
    folder = known(home).get(found[0].project) if found else None
    if folder is None:
        whose = f"of project {found[0].project!r}" if found else "that is asked for"
        raise UsageError(f"which environment grades what is {whose}? --env or --project says it")
    return folder


def _grader(home: Home, environment: "Environment", project: Project | None) -> Grader:
    """Recorded traces are judged as a turn judges them: a share of them, until the budget ends."""
    from tasks.judges import judge_of, sampled

    if project is None or project.judge is None:
        return Grader(environment, project, list, None)
    judge = judge_of(project, home)

    def judging(items: "list[Item]") -> "Sequence[Item]":
        return sampled(items, project, judge)

    return Grader(environment, project, judging, judge)


def span_of_time(project: Project | None, since: str | None, until: str | None) -> Narrowed:
    from tasks.problems import moment_of

    return Narrowed(
        project=project.name if project else None,
        since=moment_of(since) if since else None,
        until=moment_of(until) if until else None,
    )


def one_trace(id: str) -> Narrowed:
    return Narrowed(ids=[id], origins=None)

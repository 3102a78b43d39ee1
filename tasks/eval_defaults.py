"""What an evaluation takes where nothing was said: the project that is meant, and how it samples.

Enter the options as they were given. Leaves them filled, and says of each what it was taken from.
Invariant: what was given stays.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.home import Home
from flywheel.known import known
from flywheel.progress import report
from flywheel.project import Project
from tasks.eval_model import is_url


def project_here(home: Home, given: Mapping[str, Any]) -> Path | None:
    """The folder that one stands in, else that of the home's only project; None = it is not asked
    for (a model at a URL, a project's own folder), or neither is there."""
    own = given["environment"] and (Path(given["environment"]) / "flywheel.toml").is_file()
    if is_url(given["model"]) or own:
        return None
    there = [one for one in known(home).values() if (one / "flywheel.toml").is_file()]
    if Path("flywheel.toml").is_file():
        found, why = Path.cwd(), "this folder"
    elif len(there) == 1:
        found, why = there[0], "the only one of this home"
    else:
        return None
    report("project", 1, 1, f"{found}, {why}; --project names another")
    return found


def sampled_as(given: Mapping[str, Any], project: Project | None) -> dict[str, Any]:
    """With the project's own temperature and length of answers, where it is for a project."""
    if project is None:
        return dict(given)
    own = {"temperature": project.rollouts.temperature, "max_tokens": project.rollouts.max_tokens}
    taken = {name: value for name, value in own.items() if given[name] is None}
    if taken:
        told = ", ".join(f"{name} {value:g}" for name, value in taken.items())
        report("sampling", 1, 1, f"{told}: [rollouts] of {project.name}")
    return {**given, **taken}

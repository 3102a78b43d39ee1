"""Drift: whether the champion answers worse now than when it began, on real, graded traffic.

Enters a project; leaves the two means and whether its bound is broken. With too few graded traces
on either side it is unknown, with the reason, and nothing is broken.
"""

from typing import Any

from flywheel.home import Home
from flywheel.project import Project
from tasks.turns import champion_of


def drift(home: Home, project: Project) -> dict[str, Any]:
    """
    Returns: {"deployment", "traces", "first", "last", "fell", "broken", "reason"}; first, last and
        fell are None where unknown.
    """
    from storage.graded import first_and_last

    bound, size = project.schedule.drift, project.schedule.drift_traces
    name = champion_of(project).name
    means = first_and_last(home, project.name, name, size)
    found: dict[str, Any] = {
        "deployment": name,
        "traces": means.traces,
        "first": means.first,
        "last": means.last,
        "fell": None,
        "broken": False,
    }
    if bound is None:
        return {**found, "reason": "the project's file sets no bound"}
    if means.first is None or means.last is None:
        few = f"{name} has {means.traces} graded traces of production, and {2 * size} are needed"
        return {**found, "reason": f"unknown: {few}"}
    fell = means.first - means.last
    said = (
        f"the mean reward of {name} was {means.first:.3f} over its first {size} graded traces and "
        f"is {means.last:.3f} over the last {size}; it may fall by {bound:g}"
    )
    return {**found, "fell": fell, "broken": fell > bound, "reason": said}

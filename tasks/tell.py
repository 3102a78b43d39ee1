"""Tell: what the grades say is made known to Prefect's automations, which start a turn by it."""

from pathlib import Path
from typing import Any

from prefect import task

from flywheel.project import load_project
from tasks.events import tell_drift, tell_graded
from tasks.step import worth_another_try


@task(
    retries=2,
    retry_delay_seconds=2,
    retry_condition_fn=worth_another_try,
    timeout_seconds=300,
)
def tell_of_grades(folder: str) -> dict[str, Any]:
    """Returns: {"since_turn": what `tell_graded` says, "drift": what `tell_drift` says}."""
    project = load_project(Path(folder))
    return {"since_turn": tell_graded(project), "drift": tell_drift(project)}

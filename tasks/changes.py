"""What changed later: late feedback, corrected labels and new graders reach what was made before.

A project's folder enters; rollouts that they touch are graded anew, what stands on others is
marked, and Prefect is told of a mark that a retrain would answer.
"""

from pathlib import Path
from typing import Any

import msgspec
from prefect import task

from flywheel.ids import digest
from flywheel.project import load_project
from tasks.events import CHANGED, tell
from tasks.step import worth_another_try
from tasks.turns import home, turn_to_come


@task(
    retries=2,
    retry_delay_seconds=2,
    retry_condition_fn=worth_another_try,
    timeout_seconds=3600,
)
def follow_changes(folder: str) -> dict[str, Any]:
    """
    Returns: {"graded_again": rollouts, "marks": all that stand, "told": whether Prefect was now}.
    """
    from storage.built_on import records_of
    from tasks.afterwards import grade_afterwards
    from tasks.marks import live_datasets, mark_changes

    project = load_project(Path(folder))
    known = records_of(home(), project.name)
    live = live_datasets(project.name, known)
    again = grade_afterwards(turn_to_come(folder), live)
    marks = mark_changes(project, known, live)
    worth = [one for one in marks if one.retrain and one.cause != "erased"]
    told = False
    if worth:
        about = digest([(one.id, one.reason) for one in worth])
        reasons = sorted({one.reason for one in worth})
        told = tell(project.name, CHANGED, about, reasons=reasons, marks=len(worth))
    return {
        "graded_again": again,
        "marks": [msgspec.to_builtins(one) for one in marks],
        "told": told,
    }

"""Recorded traces are ingested and graded; no turn is opened by it, since it runs every hour.

What follows from the grades is told: enough of them, or a drift bound that broke, starts a turn. A
release that runs is looked at: it is promoted, rolled back, ended, or goes on. What was made before
of what is graded otherwise now is marked.
"""

from typing import Any

from prefect import flow

from tasks.changes import follow_changes
from tasks.grade import grade_recorded
from tasks.ingest import ingest_inbox
from tasks.release import look
from tasks.slots import in_its_slot, run_name
from tasks.tell import tell_of_grades
from tasks.turns import alone, turn_to_come


@flow(name="grade", flow_run_name=run_name, persist_result=False)
@in_its_slot()
def grade(project: str) -> dict[str, Any]:
    with alone(project):
        ingest_inbox()
        graded = grade_recorded(turn_to_come(project))
        release, changes = look(project), follow_changes(project)
    return {**graded, **tell_of_grades(project), "release": release, "changes": changes}

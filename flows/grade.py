"""Recorded traces are ingested and graded; no turn is opened by it, since it runs every hour."""

from typing import Any

from prefect import flow

from tasks.grade import grade_recorded
from tasks.ingest import ingest_inbox
from tasks.turns import alone, turn_to_come


@flow(name="grade", persist_result=False)
def grade(project: str) -> dict[str, Any]:
    with alone(project):
        ingest_inbox()
        return grade_recorded(turn_to_come(project))

"""Recorded traces are ingested and graded."""

from typing import Any

from prefect import flow

from tasks.grade import grade_recorded
from tasks.ingest import ingest_inbox
from tasks.turns import alone, open_turn


@flow(name="grade", persist_result=False)
def grade(project: str) -> dict[str, Any]:
    with alone(project):
        return grade_recorded(open_turn(project, ingest_inbox()))

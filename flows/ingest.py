"""What waits becomes rows of the store."""

from typing import Any

from prefect import flow

from tasks.ingest import ingest_inbox


@flow(name="ingest", persist_result=False)
def ingest() -> dict[str, Any]:
    return ingest_inbox()

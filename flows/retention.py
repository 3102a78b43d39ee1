"""What may be kept no longer is erased, with all that it is in."""

from typing import Any

from prefect import flow

from tasks.ingest import ingest_inbox
from tasks.retention import expire_traces
from tasks.slots import in_its_slot, run_name


@flow(name="retention", flow_run_name=run_name, persist_result=False)
@in_its_slot()
def retention(project: str) -> dict[str, Any]:
    ingest_inbox()
    return expire_traces(project)

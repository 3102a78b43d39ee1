"""What waits becomes rows of the store."""

from typing import Any

from prefect import flow

from tasks.ingest import index_traces, ingest_inbox, publish_lake
from tasks.slots import in_its_slot, run_name


@flow(name="ingest", flow_run_name=run_name, persist_result=False)
@in_its_slot()
def ingest() -> dict[str, Any]:
    found = ingest_inbox()
    index_traces()
    publish_lake()
    return found

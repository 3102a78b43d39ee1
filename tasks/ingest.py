"""Ingest: what waits in the inbox and the gateway's journal becomes rows of the store."""

from typing import Any

import msgspec
from prefect import task

from tasks.step import worth_another_try
from tasks.turns import home


@task(
    retries=3,
    retry_delay_seconds=2,
    retry_condition_fn=worth_another_try,
    timeout_seconds=1800,
)
def ingest_inbox() -> dict[str, Any]:
    """Commits what waits; returns the committer's counts."""
    from storage.committer import commit

    return msgspec.structs.asdict(commit(home()))  # zeros too: nothing came is not unknown

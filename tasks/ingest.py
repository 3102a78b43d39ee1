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


_AT_A_TIME = 25
"""Steps of the search index in one run: a hundred thousand traces."""


@task(timeout_seconds=1800)
def index_traces() -> int:
    """Brings the dashboard's search up to what was committed; returns how many traces it took in.
    What it does not get to, the next run does."""
    from storage.overview import known_projects
    from storage.search import advance

    return sum(advance(home(), one, batches=_AT_A_TIME) for one in known_projects(home()))

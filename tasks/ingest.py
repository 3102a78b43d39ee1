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
    """Commits what waits, and what other machines sent; returns the committer's counts."""
    from storage.committer import commit
    from storage.lake_inbox import fetched

    fetched(home())
    return msgspec.structs.asdict(commit(home()))  # zeros too: nothing came is not unknown


@task(
    retries=3,
    retry_delay_seconds=5,
    retry_condition_fn=worth_another_try,
    timeout_seconds=3600,
)
def publish_lake() -> dict[str, Any] | None:
    """Publishes what was committed, where a lake is set; returns what was put there."""
    from storage.publish import publish

    return None if home().lake is None else msgspec.structs.asdict(publish(home()))


_AT_A_TIME = 25
"""Steps of the search index in one run: a hundred thousand traces."""


@task(timeout_seconds=1800)
def index_traces() -> int:
    """Brings the dashboard's search up to what was committed; returns how many traces it took in.
    What it does not get to, the next run does."""
    from storage.overview import known_projects
    from storage.search import advance

    return sum(advance(home(), one, batches=_AT_A_TIME) for one in known_projects(home()))

"""Retention: what may be kept no longer is erased, by the project's [retention] and its senders."""

import time
from pathlib import Path
from typing import Any

from prefect import task

from tasks.step import worth_another_try
from tasks.turns import home


@task(
    retries=2,
    retry_delay_seconds=[30, 300],
    retry_condition_fn=worth_another_try,
    timeout_seconds=14_400,
)
def expire_traces(folder: str) -> dict[str, Any]:
    """Erases what is over; returns how much of what, and where it could not be."""
    from flywheel.project import load_project
    from storage.retention import expire

    project = load_project(Path(folder))
    done = expire(home(), project.name, project.retention, now=time.time_ns())
    if done is None:
        return {"erasure": None, "removed": {}, "left": 0}
    return {"erasure": done.id, "removed": done.removed, "left": len(done.left)}

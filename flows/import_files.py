"""Many files into the store, by many workers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow, unmapped

from tasks.importing import RUNNERS, batches, begun, ended, import_batch, outliving


def import_files(
    paths: Sequence[Path],
    project: str,
    *,
    form: str,
    max_line: int,
    told: Sequence[Any],
    runner: str,
    workers: int,
) -> dict[str, Any]:
    """Reads the files below `paths` on `runner`, commits once, and returns the import's report."""
    groups = batches(paths, workers)

    def work() -> dict[str, Any]:
        by = _import_files.with_options(task_runner=RUNNERS[runner](workers))
        return by(groups, project, form, max_line, list(told))

    return outliving(work)


@flow(name="import", persist_result=False)
def _import_files(
    groups: list[list[str]], project: str, form: str, max_line: int, told: list[Any]
) -> dict[str, Any]:
    before = begun(project)
    taken = import_batch.map(groups, project, form, max_line, unmapped(told))
    return ended(project, before, taken.result())

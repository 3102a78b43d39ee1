"""Files read by many workers: batches of them, each a task, on the runner that the person names.

Enter paths; leave plain counts. A worker reads its files into an inbox and commits nothing: its own
home's where it shares the disk, else the lake's, where it has one. So the outcome is that of one
process, whatever the number of workers, and whichever of them dies.
"""

from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from prefect import task

from flywheel.errors import EngineError, MissingPart
from tasks.step import worth_another_try
from tasks.turns import home

T = TypeVar("T")

_TRIES = 3
BATCHES = 4
"""A worker, so that none waits long for the last one."""


@task(
    retries=2,
    retry_delay_seconds=[1, 5],
    retry_condition_fn=worth_another_try,
    timeout_seconds=6 * 3600,
)
def import_batch(
    paths: Sequence[str], project: str, form: str, max_line: int, told: Sequence[Any]
) -> dict[str, Any]:
    """Reads a batch of files; returns its tally."""
    from storage.belonging import Belonging
    from storage.importer import take_files
    from storage.lake_inbox import handed_on

    found = take_files(
        home(), list(paths), project=project, format=form, max_line=max_line, told=Belonging(*told)
    )
    handed_on(home())
    return msgspec.to_builtins(found)  # type: ignore[no-any-return]


def batches(paths: Sequence[Path], workers: int) -> list[list[str]]:
    """The files below `paths` in groups of like size, the largest first."""
    from storage.files_in import files_under

    found = [one for path in paths for one in files_under(path)]
    groups: list[list[str]] = [[] for _ in range(min(len(found), workers * BATCHES))]
    sizes = [0] * len(groups)
    for one in sorted(found, key=lambda one: (-one.size, str(one.path))):
        least = sizes.index(min(sizes))
        groups[least].append(str(one.path.absolute()))
        sizes[least] += one.size + 1
    return groups


def outliving(work: Callable[[], T]) -> T:
    """What `work` gives, begun again where one of its processes was killed: a pool of processes
    ends with any of them, and what was read already is only found again.

    Raises:
        EngineError: they were killed each time.
    """
    for _ in range(_TRIES):
        try:
            return work()
        except BrokenProcessPool as error:
            last = error
    raise EngineError(
        "processes that read files were killed, for want of memory perhaps: what they read stays; "
        "run it again with fewer --workers"
    ) from last


def _processes(workers: int) -> Any:
    from prefect.task_runners import ProcessPoolTaskRunner

    return ProcessPoolTaskRunner(max_workers=workers)


def _dask(workers: int) -> Any:
    import os

    from prefect_dask.task_runners import DaskTaskRunner

    # A cluster that is there already, by Dask's own variable; else one on this machine.
    if address := os.environ.get("DASK_SCHEDULER_ADDRESS"):
        return DaskTaskRunner(address=address)
    local = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    return DaskTaskRunner(cluster_kwargs=local)


def _ray(workers: int) -> Any:
    try:
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise MissingPart(
            "prefect-ray is not here: `.venv/bin/pip install prefect-ray` brings it and Ray"
        ) from error
    return RayTaskRunner(init_kwargs={"num_cpus": workers})


RUNNERS: dict[str, Callable[[int], Any]] = {
    "processes": _processes,
    "dask": _dask,
    "ray": _ray,
}
"""Name -> Prefect's task runner of so many workers."""


def begun(project: str) -> dict[str, int]:
    """What the store holds of the project's imports."""
    from storage.receipts import stored

    return stored(home(), project)._asdict()


def ended(project: str, before: dict[str, int], taken: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Commits what all workers took; returns the report of it."""
    from storage.importer import committed
    from storage.lake_inbox import fetched
    from storage.receipts import Stored
    from storage.tally import Tally

    whole = Tally()
    for one in taken:
        whole.join(msgspec.convert(one, Tally))
    fetched(home())
    return msgspec.to_builtins(committed(home(), project, Stored(**before), whole))  # type: ignore[no-any-return]

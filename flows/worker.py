"""This home's worker: a Prefect process worker, and the reaper of runs that died.

`python -m flows.worker QUEUE` is a child of `flywheel prefect`. Its runs leave with it (they are
told its process in FLYWHEEL_WORKER); what they had done is kept, and the next worker's reaper puts
them back.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

from flywheel import children
from flywheel.settings import load, quiet_dependencies

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

POOL = "flywheel"
"""The work pool that all deployments of ours are in."""
_RUNS_AT_ONCE = 4
"""Of the whole pool, as it is made; what a person sets later stays."""


def main() -> None:
    children.follow_parent()
    settings = load()
    home = settings.at()
    quiet_dependencies(home)
    os.environ.setdefault("PREFECT_WORKER_QUERY_SECONDS", "5")
    queue = sys.argv[1]
    import prefect.workers.process  # noqa: F401  before threads, which would import it at once
    from prefect.client.orchestration import get_client

    from flows.reaper import Reaper
    from tasks.beats import myself

    os.environ["FLYWHEEL_WORKER"] = myself()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with get_client(sync_client=True) as client:
        have_pool(client)
    reaper = Reaper(home, POOL, queue, silent_s=settings.silent_s, attempts=settings.attempts)
    every_s = min(15.0, settings.silent_s / 4)
    threading.Thread(target=reaper.run, args=(every_s,), name="reaper", daemon=True).start()
    asyncio.run(work(queue))


def have_pool(client: "SyncPrefectClient") -> None:
    """The work pool of type process, made if there is none."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    with contextlib.suppress(ObjectAlreadyExists):
        client.create_work_pool(
            WorkPoolCreate(
                name=POOL,
                type="process",
                description="Flywheel's flows, each in a process of its own",
                base_job_template=ProcessWorker.get_default_base_job_template(),
                concurrency_limit=_RUNS_AT_ONCE,
            )
        )


async def work(queue: str) -> None:
    """Until SIGTERM or SIGINT; then its runs are ended."""
    from prefect.workers.process import ProcessWorker

    worker = ProcessWorker(
        POOL,
        work_queues=[queue],
        name=f"{socket.gethostname()} {os.getpid()}",
        create_pool_if_not_found=False,
    )
    working = asyncio.ensure_future(worker.start())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        print("told to stop", flush=True)


if __name__ == "__main__":
    main()

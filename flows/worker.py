"""This home's worker: a Prefect process worker, and the reaper of runs that died.

`python -m flows.worker QUEUE` is a child of `flywheel prefect`. Its runs leave with it (they are
told its process in FLYWHEEL_WORKER); what they had done is kept, and the next worker's reaper puts
them back.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading

from flywheel import children
from flywheel.settings import load, quiet_dependencies

POOL = "flywheel"
"""The work pool that all deployments of ours are in."""


def main() -> None:
    children.follow_parent()
    settings = load()
    home = settings.at()
    quiet_dependencies(home)
    os.environ.setdefault("PREFECT_WORKER_QUERY_SECONDS", "5")
    queue = sys.argv[1]
    import prefect.workers.process  # noqa: F401  before threads, which would import it at once

    from flows.reaper import Reaper
    from tasks.beats import myself

    os.environ["FLYWHEEL_WORKER"] = myself()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    reaper = Reaper(home, POOL, queue, silent_s=settings.silent_s, attempts=settings.attempts)
    every_s = min(15.0, settings.silent_s / 4)
    threading.Thread(target=reaper.run, args=(every_s,), name="reaper", daemon=True).start()
    asyncio.run(work(queue))


async def work(queue: str) -> None:
    """Until SIGTERM or SIGINT; then its runs are ended."""
    from prefect.workers.process import ProcessWorker

    worker = ProcessWorker(POOL, work_queues=[queue], name=f"{socket.gethostname()} {os.getpid()}")
    working = asyncio.ensure_future(worker.start())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        print("told to stop", flush=True)


if __name__ == "__main__":
    main()

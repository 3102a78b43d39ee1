"""One flow run's process, as the worker starts it: `python -m flows.running` for Prefect's engine.

It beats from its first moment, leaves with its worker, and is ended by its time limit: such a run
is Failed under the name TimedOut, and is not tried again.
"""

import contextlib
import logging
import os
import runpy
import sys
import time
from typing import Any
from uuid import UUID

from flywheel import progress
from flywheel.settings import load, quiet_dependencies
from tasks.beats import Beating

_log = logging.getLogger("flywheel.run")
_TELL_S = 10.0


def main() -> None:
    settings = load()
    home, run_id = settings.at(), os.environ["PREFECT__FLOW_RUN_ID"]
    home.prefect.mkdir(parents=True, exist_ok=True)
    quiet_dependencies(home)
    beating = Beating(
        home,
        run_id,
        every_s=settings.beat_s,
        limit_s=settings.run_limit_s,
        worker=settings.worker,
        orphaned=lambda: os._exit(1),
        overdue=lambda limit_s: time_out(run_id, limit_s),
    )
    beating.start()
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", _log.name)
    progress.listen(Told())
    sys.argv = ["prefect.engine"]
    try:
        runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not end.code:
            beating.stop()
        raise
    beating.stop()


class Told:
    """Progress on the run's page: a line a step, and one every few seconds while it goes on."""

    def __init__(self) -> None:
        self.step, self.told = "", 0.0

    def __call__(self, step: str, done: int, total: int | None, note: str) -> None:
        now = time.monotonic()
        if step != self.step or done == total or now - self.told > _TELL_S:
            self.step, self.told = step, now
            of = f" {done}/{total}" if total is not None else f" {done or ''}"
            _log.info("%s%s %s", step, of, note)


def time_out(run_id: str, limit_s: float) -> None:
    """Marks the run and ends its process, whatever it hangs in. What it started leaves with it."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import State
    from prefect.states import Failed

    state: State[Any] = Failed(name="TimedOut", message=f"ended after its limit of {limit_s:g} s")
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(run_id), state, force=True)
        os._exit(0)
    _log.error("run %s is over its limit, and its server could not be told", run_id)
    os._exit(1)


if __name__ == "__main__":
    main()

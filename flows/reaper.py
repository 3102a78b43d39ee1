"""The reaper: runs whose process is gone or says nothing are ended, and put back a few times.

Enter the runs that Prefect takes for alive, and the beats in the home; leave Crashed runs, and new
tries of them. A run that was put back is the same run: its slot is its own, and what its turn had
done is kept. Only the reaper's own steady clock counts, so that no jump of the wall clock kills.
"""

import logging
import os
import signal
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flywheel import durable
from flywheel.errors import FlywheelError
from flywheel.home import Home
from tasks.beats import Beat, alive, beats, folder, forget

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

_log = logging.getLogger("flywheel.reaper")
_PAUSE_S = 2
"""Before a run that died is begun again, times the number of its tries."""
_GRACE_S = 30.0
"""How long after its limit a run may take to end itself."""
_OLD_S = 3600.0
"""What crashed longer ago is left as it is: its next slot has come."""
_KEPT_S = 30 * 86400.0


class Reaper:
    def __init__(
        self, home: Home, pool: str, queue: str, *, silent_s: float, attempts: int
    ) -> None:
        self.home, self.pool, self.queue = home, pool, queue
        self.silent_s, self.attempts = silent_s, attempts
        self.heard: dict[str, tuple[int, float]] = {}
        """Run -> its last beat's number, and when we first saw that, by our steady clock."""

    def run(self, every_s: float) -> None:
        """Looks for ever; a server that is not there is tried again the next time."""
        sweep(self.home)
        while True:
            try:
                self.look()
            except Exception as error:
                _log.warning("could not look after runs: %s", error)
            time.sleep(every_s)

    def look(self) -> list[str]:
        """One look; returns what it did, a line each."""
        from prefect.client.orchestration import get_client

        did = []
        with get_client(sync_client=True) as client:
            known = beats(self.home)
            living = self._runs(client, ("PENDING", "RUNNING", "CANCELLING"))
            for run in living:
                why = self.why_dead(run, known.get(str(run.id)))
                if why:
                    did.append(self._end(client, run, why, known.get(str(run.id))))
            here = {str(run.id) for run in living}
            self.heard = {one: seen for one, seen in self.heard.items() if one in here}
            for run in self._runs(client, ("CRASHED",)):
                said = self._put_back(client, run)
                did += [said] if said else []
        for line in did:
            _log.warning("%s", line)
        return did

    def why_dead(self, run: "FlowRun", beat: Beat | None) -> str | None:
        """Why the run does not live; None = it does, or nobody knows yet."""
        silence = self._silence(str(run.id), beat)
        if beat is None:
            return "its process was never heard of" if silence > 2 * self.silent_s else None
        if beat.host == socket.gethostname() and not alive(f"{beat.pid}@{beat.started}"):
            return "its process is gone"
        if silence > self.silent_s:
            return f"its process said nothing for {silence:.0f} s"
        if beat.limit_s is not None and beat.age_s > beat.limit_s + _GRACE_S:
            return f"it is over its limit of {beat.limit_s:g} s"
        return None

    def _silence(self, run_id: str, beat: Beat | None) -> float:
        number, now = beat.number if beat else 0, time.monotonic()
        seen = self.heard.get(run_id)
        if seen is None or seen[0] != number:
            self.heard[run_id] = seen = (number, now)
        return now - seen[1]

    def _runs(self, client: Any, types: tuple[str, ...]) -> "list[FlowRun]":
        from prefect.client.schemas.filters import (
            FlowRunFilter,
            WorkPoolFilter,
            WorkPoolFilterName,
            WorkQueueFilter,
            WorkQueueFilterName,
        )
        from prefect.client.schemas.sorting import FlowRunSort

        found: list[FlowRun] = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": types}}}),
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[self.pool])),
            work_queue_filter=WorkQueueFilter(name=WorkQueueFilterName(any_=[self.queue])),
            sort=FlowRunSort.START_TIME_DESC,
            limit=200,
        )
        return found

    def _end(self, client: Any, run: "FlowRun", why: str, beat: Beat | None) -> str:
        from prefect.client.schemas.objects import State
        from prefect.states import Cancelled, Crashed, Failed

        if beat is not None and beat.host == socket.gethostname():
            kill(beat)
        forget(self.home, str(run.id))
        if run.state and run.state.is_cancelling():
            state: State[Any] = Cancelled(message=f"cancelled; {why}")
        elif "limit" in why:
            state = Failed(name="TimedOut", message=why)
        else:
            state = Crashed(message=why)
        client.set_flow_run_state(run.id, state, force=True)
        return f"run {run.id} ({run.name}) is {state.name}: {why}"

    def _put_back(self, client: Any, run: "FlowRun") -> str | None:
        """Lets the run be begun again; None = it has had its tries, or is too old."""
        from prefect.client.schemas.objects import State
        from prefect.states import AwaitingRetry
        from prefect.types._datetime import now

        crashed = run.state.timestamp if run.state else None
        tries = tries_of(self.home, str(run.id))
        if tries >= self.attempts or crashed is None or run.deployment_id is None:
            return None
        if (now("UTC") - crashed).total_seconds() > _OLD_S:
            return None
        durable.write(_tries(self.home, str(run.id)), str(tries + 1).encode())
        at = now("UTC") + timedelta(seconds=_PAUSE_S * tries)
        said = run.state.message if run.state else ""
        state: State[Any] = AwaitingRetry(
            scheduled_time=at, message=f"try {tries + 1} of {self.attempts}; before: {said}"
        )
        client.set_flow_run_state(run.id, state, force=True)
        return f"run {run.id} ({run.name}) is begun again, try {tries + 1} of {self.attempts}"


def kill(beat: Beat) -> None:
    """Ends the process of the beat, if it is still that one."""
    if alive(f"{beat.pid}@{beat.started}"):
        os.kill(beat.pid, signal.SIGKILL)


def _tries(home: Home, run_id: str) -> Any:
    return folder(home) / f"{run_id}.tries"


def tries_of(home: Home, run_id: str) -> int:
    """How often the run was begun, as far as the reaper had a hand in it."""
    try:
        return int(_tries(home, run_id).read_text())
    except (FileNotFoundError, ValueError):
        return 1


def sweep(home: Home) -> None:
    """Drops what was left of runs that nobody asks after any more."""
    now = time.time()
    for path in folder(home).glob("*"):
        try:
            if now - path.stat().st_mtime > _KEPT_S:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FlywheelError(f"{path} cannot be removed: {error}") from error

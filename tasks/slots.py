"""Slots: a scheduled start is worked off once, however often, late or twice it is begun.

Enters a flow run that a deployment made; leaves None (go on) or why it is skipped. A claim is one
file in the home, made whole or not at all: of concurrent starts one gets it, and the run that holds
it goes on when it is begun again. What wall clocks say is believed only as far as claims allow.
"""

import contextlib
import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from filelock import FileLock

from flywheel import durable
from flywheel.errors import FlywheelError, Refused
from flywheel.home import Home
from flywheel.ids import digest
from flywheel.progress import report
from flywheel.project import load_project
from flywheel.records import Record
from tasks.events import last_turn
from tasks.turns import UnderWay, home, only_turn, settings

F = TypeVar("F", bound=Callable[..., Any])
_MOST, _KEPT = 2000, 1000
"""Claims of one deployment: when there are more than `_MOST`, the `_KEPT` newest stay."""


class Claim(Record, frozen=True, kw_only=True):
    slot: str
    """When the run was to start, in UTC."""
    run_id: str
    claimed: str
    """When it did, in UTC, by the clock of the moment."""


def claim(
    place: Home, deployment: str, slot: datetime, run_id: str, *, now: datetime, scheduled: bool
) -> str | None:
    """Takes the slot for the run. None = it may work; else why it may not.

    One claim stands for all slots that were due when it was made: what a machine missed while it
    slept, or while its clock jumped ahead, is made up for once. A claim from a time that has not
    come yet (the clock was set back) stands for its own slot only.

    Args:
        deployment: flow/PROJECT.
        scheduled: by its schedule; what a person or an event started takes only its own slot.
    """
    folder = place.prefect / "slots" / digest(deployment)[:12]
    folder.mkdir(parents=True, exist_ok=True)
    mine, at = _text(slot), _text(now)
    with FileLock(folder / ".lock"):
        claims = [one for path in folder.glob("*.json") if (one := _read(path))]
        for one in claims:
            if one.slot == mine:
                if one.run_id == run_id:
                    return None
                return f"{deployment} at {mine} was taken by run {one.run_id}, at {one.claimed}"
        covering = [one for one in claims if mine <= one.claimed <= at] if scheduled else []
        if covering:
            last = max(covering, key=lambda one: one.claimed)
            return (
                f"{deployment} at {mine} was missed; run {last.run_id}, begun at {last.claimed}, "
                "stands for all that was due by then"
            )
        made = Claim(slot=mine, run_id=run_id, claimed=at)
        durable.write(folder / f"{digest(mine)}.json", msgspec.json.encode(made))
        if len(claims) > _MOST:
            _drop(folder, sorted(claims, key=lambda one: one.claimed)[:-_KEPT])
    return None


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _read(path: Path) -> Claim | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Claim)
    except (OSError, msgspec.DecodeError):
        return None


def _drop(folder: Path, claims: list[Claim]) -> None:
    for one in claims:
        (folder / f"{digest(one.slot)}.json").unlink(missing_ok=True)


def in_its_slot(*, wait_s: float = 0.0, same_work: bool = False) -> Callable[[F], F]:
    """A flow's function that works only where its run has its slot; else, and where a turn of the
    project is under way, the run ends Completed under the name Skipped, with the reason. A gate's
    no ends it Completed under the name Refused.

    What a person started by a command has no slot: there a turn under way is an error.

    Args:
        wait_s: how long a turn under way is waited for.
        same_work: whether a turn that ended meanwhile has done what this run was to do; it is then
            skipped too.
    """

    def wrap(function: F) -> F:
        @functools.wraps(function)
        def in_slot(*given: Any, **named: Any) -> Any:
            run = deployed_run()
            if run is None:
                return function(*given, **named)
            folder = given[0] if given else named.get("project", named.get("project_folder"))
            why = claim_of(run) or (
                wait_for_turn(folder, wait_s, same_work) if folder and wait_s else None
            )
            if why is None:
                try:
                    return function(*given, **named)
                except UnderWay as busy:
                    why = str(busy)
                except Refused as refusal:
                    return ended("Refused", str(refusal))
            return ended("Skipped", why)

        return cast(F, in_slot)

    return wrap


def ended(name: str, why: str) -> Any:
    from prefect.states import Completed

    return Completed(name=name, message=why, data={name.lower(): why})


def wait_for_turn(folder: str, wait_s: float, same_work: bool) -> str | None:
    """Waits while a turn of the project is under way. None = the run has its work to do still."""
    project, until = load_project(Path(folder)), time.monotonic() + wait_s
    before = last_turn(home(), project.name)
    while time.monotonic() < until:
        try:
            with only_turn(project):
                break
        except UnderWay:
            report(f"waiting for the turn of {project.name} under way", 0)
            time.sleep(min(5.0, wait_s / 10))
    after = last_turn(home(), project.name)
    if same_work and after is not None and after != before:
        return f"turn {after.run_id} of {project.name} ended while this one waited for it"
    return None


def deployed_run() -> Any:
    """The flow run that this is, if a deployment made it; None = a command did, or a test."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    run = context.flow_run if context else None
    return run if run is not None and run.deployment_id is not None else None


def first_try() -> bool:
    """Whether this is a deployment's run in its first try: it works with what is there now. When it
    is begun again it goes on with what it had."""
    run = deployed_run()
    return run is not None and run.run_count <= 1


def claim_of(run: Any) -> str | None:
    name = settings().deployment or str(run.deployment_id)
    return claim(
        home(),
        name,
        run.expected_start_time,
        str(run.id),
        now=datetime.now(UTC),
        scheduled=bool(run.auto_scheduled),
    )


def run_name() -> str:
    """What a flow run is called: its flow and project, and when it was due."""
    from prefect.runtime import flow_run

    given = flow_run.parameters or {}
    folder = given.get("project") or given.get("project_folder")
    project = (settings().deployment or "").partition("/")[2]
    if folder:
        with contextlib.suppress(FlywheelError):
            project = load_project(Path(folder)).name
    due = flow_run.scheduled_start_time
    return f"{flow_run.flow_name}{f' of {project}' if project else ''}, {due:%Y-%m-%d %H:%M:%S}"

"""What flows tell Prefect's automations: enough was graded, a drift bound broke, a version came,
what a model stands on is graded otherwise.

Enter what the store, the routing file and the registry say; leave events of the project, each
emitted once for what it tells: what was told is kept in the home, and an event that could not be
delivered is told again the next time. Only runs that a deployment made tell anything: nobody would
hear a command's.
"""

import time
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
from filelock import FileLock

from flywheel import durable
from flywheel.home import Home
from flywheel.project import Project
from flywheel.records import Record
from tasks.turns import Turn, home, home_id

ENOUGH, BROKEN, REGISTERED, CHANGED = (
    "flywheel.graded.enough",
    "flywheel.drift.broken",
    "flywheel.version.registered",
    "flywheel.data.changed",
)
_MOST_TOLD = 1000
"""Things told that are remembered for each event; the oldest go."""


class Ended(Record, frozen=True, kw_only=True):
    """A project's last turn that came to an end."""

    run_id: str
    graded: int
    """Recorded traces that had all their rewards then: they have had their turn."""


def last_turn(place: Home, project: str) -> Ended | None:
    """None = no turn has ended yet."""
    try:
        return msgspec.json.decode(_ended(place, project).read_bytes(), type=Ended)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def turn_ended(turn: Turn) -> None:
    """Called once a turn has its verdict, before it is closed."""
    from storage.graded import graded

    ended = Ended(run_id=turn.run_id, graded=graded(home(), turn.project))
    durable.write(_ended(home(), turn.project), msgspec.json.encode(ended))


def _ended(place: Home, project: str) -> Path:
    return place.turns / "ended" / f"{project}.json"


def tell_graded(project: Project) -> dict[str, Any]:
    """Tells once that enough was graded since the last turn to start one.

    Returns: {"graded": count since then, "enough": bound or None, "told": whether it was now}.
    """
    from storage.graded import graded

    bound, last = project.schedule.enough_graded, last_turn(home(), project.name)
    found = graded(home(), project.name) - (last.graded if last else 0)
    told = False
    if bound is not None and found >= bound:
        after = last.run_id if last else "the beginning"
        told = tell(project.name, ENOUGH, after, graded=found, enough=bound, since=after)
    return {"graded": found, "enough": bound, "told": told}


def tell_drift(project: Project) -> dict[str, Any]:
    """Tells once a deployment that its answers became worse than the project's file allows.

    Returns: what `tasks.drift.drift` says, and "told".
    """
    from tasks.drift import drift

    found = drift(home(), project)
    told = False
    if found["broken"]:
        told = tell(
            project.name, BROKEN, found["deployment"], reason=found["reason"], fell=found["fell"]
        )
    return {**found, "told": told}


def tell_registered(project: str, version: str) -> bool:
    """Tells once that the registry has a version that no turn of ours has made and judged."""
    return tell(project, REGISTERED, version, version=version)


def tell(project: str, event: str, about: str, **payload: Any) -> bool:
    """Emits the event unless it was told of the same thing before; whether it was now.

    The server takes an event of the same id once, so that one killed between telling and noting
    does no harm.

    Raises:
        httpx.HTTPError: the server did not take it.
    """
    from tasks.slots import deployed_run

    if deployed_run() is None or told_at(project, event, about) is not None:
        return False
    emit(project, event, about, payload)
    _keep_told(project, event, about)
    return True


def told_at(project: str, event: str, about: str) -> float | None:
    """When the event was told of that thing, in seconds of the clock; None = it was not."""
    return _told(project).get(event, {}).get(about)


def _keep_told(project: str, event: str, about: str) -> None:
    file = _told_file(project)
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):  # grading and the registry's flow tell side by side
        told = _told(project)
        of_it = {**told.get(event, {}), about: time.time()}
        newest = sorted(of_it.items(), key=lambda one: one[1])[-_MOST_TOLD:]
        durable.write(file, msgspec.json.encode({**told, event: dict(newest)}))


def emit(project: str, event: str, about: str, payload: dict[str, Any]) -> None:
    from prefect.client.orchestration import get_client
    from prefect.events import Event, Resource
    from prefect.types._datetime import now

    said = Event(
        id=uuid5(NAMESPACE_URL, f"{home_id()}/{project}/{event}/{about}"),
        occurred=now("UTC"),
        event=event,
        resource=Resource({"prefect.resource.id": resource_of(project), "project": project}),
        payload={"project": project, **payload},
    )
    with get_client(sync_client=True) as client:
        client.request("POST", "/events", json=[said.model_dump(mode="json")]).raise_for_status()


def resource_of(project: str) -> str:
    """What events of a project of this home are about; prefect.yaml matches it."""
    return f"flywheel.{home_id()}.{project}"


def _told(project: str) -> dict[str, dict[str, float]]:
    """Event -> what it was told of -> when."""
    file = _told_file(project)
    try:
        data, since = file.read_bytes(), file.stat().st_mtime
        found = msgspec.json.decode(data, type=dict[str, dict[str, float] | str])
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    # A home of before has only the last thing told of each event.
    return {
        event: {told: since} if isinstance(told, str) else told for event, told in found.items()
    }


def _told_file(project: str) -> Path:
    return home().prefect / "told" / f"{project}.json"

"""Intents: what a change of who serves is about to do, on disk before it does anything.

One file a project while it is under way. The routing file says afterwards whether it happened. The
Decision is written as often as `decide` is called, once; the intent is forgotten when all know.
"""

import logging
import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from flywheel import durable
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.lineage import Decision, Deployment, Outcome
from flywheel.records import Record
from serving.routing import ProjectRoute
from storage.envelope import AnyRecord
from storage.inbox import Inbox

_log = logging.getLogger(__name__)


class Intent(Record, frozen=True, kw_only=True):
    id: str
    """ULID: the id of the Decision that ends it, however it ends."""
    kind: Literal["promotion", "rollback", "canary", "routing"]
    project: str
    target: Deployment
    """What shall be champion, or of a canary what shall be challenger. Of a routing (who is asked
    beside the champion, or first of all) whom it is about."""
    replaces: Deployment
    reason: str
    by: str
    at: int
    run_id: str | None = None
    evaluation_id: str | None = None
    share: float | None = None
    """Of a canary: of the requests; of a shadow: of the copies; 0 = it ends."""
    ends: Deployment | None = None
    """The challenger whose canary ends with this; None = none does."""
    route: ProjectRoute | None = None
    """Of a routing: as it shall be."""
    verdict: Outcome | None = None
    """Of a canary that ends by its tests: rolled_back or inconclusive; None = a person's word."""
    decided: bool = False
    """It took effect and is in the ledger; MLflow alone does not know of it yet."""
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)


def took_effect(intent: Intent, route: ProjectRoute | None) -> bool:
    """Whether the routing file is as the intent wants it."""
    if route is None:
        return False
    if intent.kind == "routing":
        return route == intent.route
    if intent.kind != "canary":
        return route.champion.name == intent.target.name
    if not intent.share:
        return route.challenger is None or route.challenger.name != intent.target.name
    there = route.challenger is not None and route.challenger.name == intent.target.name
    return there and route.share == intent.share


def begin(home: Home, intent: Intent) -> None:
    durable.write(_path(home, intent.project), msgspec.json.encode(intent))
    failpoint("promotion.after_intent")


def read_intent(home: Home, project: str) -> Intent | None:
    """The intent that a killed process left; one that cannot be read is set aside.

    It only helps: the routing file knows what serves.
    """
    path = _path(home, project)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Intent)
    except FileNotFoundError:
        return None
    except (IsADirectoryError, msgspec.DecodeError) as error:
        aside = path.with_suffix(".broken")
        os.replace(path, aside)
        _log.warning("%s is not an intent (%s); it is now %s", path, error, aside.name)
        return None


def conclude(home: Home, intent: Intent, outcome: Outcome, gate: str, reason: str) -> None:
    """Of what changed nothing: the Decision, once whatever happens, and no intent any more."""
    decide(home, intent, outcome, gate, reason)
    forget(home, intent)


def decide(home: Home, intent: Intent, outcome: Outcome, gate: str, reason: str) -> None:
    """Writes the Decision, once whatever happens."""
    happened = outcome in ("promoted", "rolled_back", "canary", "inconclusive", "routed")
    back = intent.verdict == "rolled_back" and happened
    replaces = happened and _changes_champion(intent)
    decision = Decision(
        id=intent.id,
        project=intent.project,
        outcome=outcome,
        gate=gate,
        reason=reason,
        by=intent.by,
        at=intent.at,
        run_id=intent.run_id,
        evaluation_id=intent.evaluation_id,
        deployment=(intent.replaces if back else intent.target).name,
        replaced=intent.target.name if back else intent.replaces.name if replaces else None,
        evidence=intent.evidence
        if intent.share is None
        else {**intent.evidence, "share": intent.share},
    )
    records: list[AnyRecord] = [decision, intent.target] if happened else [decision]
    Inbox(home).append(records, name=f"decision:{intent.id}")
    failpoint("promotion.after_decision")


def _changes_champion(intent: Intent) -> bool:
    if intent.kind == "routing":
        return intent.route is not None and intent.route.champion != intent.replaces
    return intent.kind != "canary"


def forget(home: Home, intent: Intent) -> None:
    path = _path(home, intent.project)
    path.unlink(missing_ok=True)
    durable.sync_folder(path.parent)


def aliases_of(route: ProjectRoute) -> dict[str, str | None]:
    """What MLflow's aliases must be. The base model has no version, so it bears none."""
    wanted = {
        "champion": route.champion.registry_version,
        "previous": route.previous.registry_version if route.previous else None,
    }
    if route.challenger is not None:
        wanted["challenger"] = route.challenger.registry_version
    return wanted


def _path(home: Home, project: str) -> Path:
    return home.promotions / f"{project}.json"

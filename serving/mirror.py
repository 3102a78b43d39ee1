"""Who is asked copies of the requests, unseen: a shadow is set, or ended.

Enters a candidate and a share; leaves the route, and a Decision `routed`. It passes the serving
gate like a canary, so that what is graded is what was trained; nobody is ever answered by it.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from flywheel.errors import CorruptFile, EngineError, Refused, UsageError
from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import Decision, Deployment, Outcome
from serving.protocol import load, must_suit, replace_route, route_for
from serving.reconcile import AdapterHost, alone, unload
from serving.routing import ProjectRoute, read
from storage.inbox import Inbox
from storage.moments import moment


def set_shadow(
    home: Home,
    candidate: Deployment,
    share: float,
    *,
    engine: AdapterHost,
    verify: Callable[[], dict[str, Any]],
    by: str,
    reason: str,
) -> ProjectRoute:
    """Again with the same share: no change.

    Args:
        share: of the conversations, above 0, to 1.

    Raises:
        UsageError: no share, or the champion itself.
        Refused: by the serving gate; the ledger has it, and all is as before.
        EngineError: the engine failed; nothing is decided.
        Busy: a promotion, rollback or release of the project runs.
    """
    if not 0 < share <= 1:
        raise UsageError(f"a shadow's share is above 0 and at most 1, not {share:g}")
    with alone(home, candidate.project):
        route = route_for(home, candidate)
        if candidate.name == route.champion.name:
            raise UsageError(f"{candidate.name} is the champion: it answers already")
        if route.shadow == candidate and route.shadow_share == share:
            return route
        found: dict[str, Any] = {}
        try:
            must_suit(route, candidate)
            load(home, candidate, engine)
            found = verify()
        except (Refused, CorruptFile) as error:
            unload(home, candidate, engine)
            _decide(home, candidate, "refused", str(error), by, {})
            raise Refused(f"{candidate.name} is asked nothing: {error}") from error
        except EngineError:
            unload(home, candidate, engine)
            raise
        new = msgspec.structs.replace(route, shadow=candidate, shadow_share=share)
        new = replace_route(home, route, new)
        _decide(home, candidate, "routed", reason, by, {"shadow": share, "serving": found})
        if route.shadow is not None:
            unload(home, route.shadow, engine)
        return new


def end_shadow(
    home: Home,
    project: str,
    version: str | None,
    *,
    engine: AdapterHost | None,
    by: str,
    reason: str,
    evidence: dict[str, Any] | None = None,
) -> ProjectRoute:
    """
    Args:
        version: whose it must be; None = whichever runs.

    Raises:
        UsageError: no shadow, or that of another version.
    """
    with alone(home, project):
        route = read(home).projects.get(project)
        shadow = route.shadow if route else None
        if route is None or shadow is None or version not in (None, str(shadow.version)):
            raise UsageError(f"no such shadow of {project}: nothing to end")
        new = msgspec.structs.replace(route, shadow=None, shadow_share=0.0)
        new = replace_route(home, route, new)
        _decide(home, shadow, "routed", reason, by, {"shadow": 0.0, **(evidence or {})})
        if engine is not None:
            unload(home, shadow, engine)
        return new


def _decide(
    home: Home, one: Deployment, outcome: Outcome, reason: str, by: str, evidence: dict[str, Any]
) -> None:
    decision = Decision(
        id=new_ulid(),
        project=one.project,
        outcome=outcome,
        gate="serving" if outcome == "refused" else "shadow",
        reason=reason,
        by=by,
        at=moment(home),
        run_id=one.run_id,
        deployment=one.name,
        evidence=evidence,
    )
    Inbox(home).append([decision] if outcome == "refused" else [decision, one])

"""Who is asked beside the champion: the shadow that gets copies of requests, and those who stand in
where it fails.

Enters a project's route and the change; leaves the new route, in force at once, and a Decision
`routed` in the ledger. The champion is never touched. Invariant: what an engine of ours shall
answer as a shadow has passed the serving gate.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from flywheel.errors import CorruptFile, EngineError, Refused, UsageError
from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import Decision, Deployment
from serving.protocol import load, must_suit, replace_route
from serving.reconcile import AdapterHost, alone, settle, unload
from serving.routing import ProjectRoute, is_external, read
from storage.inbox import Inbox
from storage.moments import moment


def set_shadow(
    home: Home,
    shadow: Deployment,
    share: float,
    *,
    engine: AdapterHost | None,
    verify: Callable[[], dict[str, Any]],
    by: str,
    reason: str,
) -> ProjectRoute:
    """Lets `shadow` get a copy of `share` of the project's conversations.

    Raises:
        UsageError: no share, or the champion itself.
        Refused: by the serving gate; all serves as before.
        EngineError: none runs, or it failed.
    """
    if not 0 < share <= 1:
        raise UsageError(f"a shadow's share is above 0 and at most 1, not {share:g}")
    with alone(home, shadow.project):
        route = _route(home, shadow.project, engine)
        if shadow.name == route.champion.name:
            raise UsageError(f"{shadow.name} is the champion: a copy would tell nothing")
        found: dict[str, Any] = {}
        if not is_external(shadow):
            found = _loaded(home, route, shadow, engine, verify)
        new = msgspec.structs.replace(route, shadow=shadow, shadow_share=share)
        what = f"{shadow.name} gets a copy of {share:.1%} of the conversations"
        done = _changed(home, route, new, shadow, what, by, reason, {"serving": found})
        if route.shadow is not None and engine is not None:
            unload(home, route.shadow, engine)
        return done


def end_shadow(
    home: Home,
    project: str,
    *,
    engine: AdapterHost | None,
    by: str,
    reason: str,
    version: str | None = None,
    evidence: dict[str, Any] | None = None,
) -> ProjectRoute:
    """
    Args:
        version: whose it must be; None = whichever runs.

    Raises:
        UsageError: there is none, or that of another version.
    """
    with alone(home, project):
        route = _route(home, project, engine)
        if route.shadow is None or version not in (None, str(route.shadow.version)):
            raise UsageError(f"no such shadow of {project} runs: nothing to end")
        new = msgspec.structs.replace(route, shadow=None, shadow_share=0.0)
        what = f"{route.shadow.name} gets no copies any more"
        done = _changed(home, route, new, route.shadow, what, by, reason, evidence or {})
        if engine is not None:
            unload(home, route.shadow, engine)
        return done


def set_fallbacks(
    home: Home, project: str, fallbacks: tuple[Deployment, ...], *, by: str, reason: str
) -> ProjectRoute:
    """
    Args:
        fallbacks: () = those that the project's file names.
    """
    with alone(home, project):
        route = _route(home, project, None)
        new = msgspec.structs.replace(route, fallbacks=fallbacks)
        names = ", ".join(one.name for one in fallbacks) or "whom the project's file names"
        what = f"where the champion fails, {names} answer"
        return _changed(home, route, new, None, what, by, reason, {})


def _route(home: Home, project: str, engine: AdapterHost | None) -> ProjectRoute:
    settle(home, project, None, engine)
    route = read(home).projects.get(project)
    if route is None:
        raise UsageError(f"nothing serves {project} yet: `flywheel serve` begins")
    return route


def _loaded(
    home: Home,
    route: ProjectRoute,
    shadow: Deployment,
    engine: AdapterHost | None,
    verify: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    if engine is None:
        raise EngineError(f"no engine runs that could serve {shadow.name}")
    try:
        must_suit(route, shadow)
        load(home, shadow, engine)
        return verify()
    except (Refused, CorruptFile, EngineError):
        unload(home, shadow, engine)
        raise


def _changed(
    home: Home,
    route: ProjectRoute,
    new: ProjectRoute,
    deployment: Deployment | None,
    what: str,
    by: str,
    reason: str,
    evidence: dict[str, Any],
) -> ProjectRoute:
    done = replace_route(home, route, new)
    decision = Decision(
        id=new_ulid(),
        project=route.project,
        outcome="routed",
        gate="person",
        reason=f"{what}: {reason}" if reason else what,
        by=by,
        at=moment(home),
        run_id=deployment.run_id if deployment else None,
        deployment=deployment.name if deployment else None,
        evidence=evidence,
    )
    Inbox(home).append([decision, *([deployment] if deployment else ())])
    return done

"""Who is asked beside the champion: the shadow that gets copies of requests, and those who stand in
where it fails.

Enters a project's route and the change; leaves the new route, in force at once, and a Decision
`routed` in the ledger. The champion is never touched, and a kill loses no Decision: an intent comes
first, as for a promotion. Invariant: what an engine of ours shall answer as a shadow has passed the
serving gate.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from flywheel.errors import CorruptFile, EngineError, Refused, UsageError
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import Deployment
from serving.intents import Intent, begin, conclude, forget
from serving.protocol import load, must_suit, reroute
from serving.reconcile import AdapterHost, alone, settle, unload
from serving.routing import ProjectRoute, is_external, read
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
        Refused: by the serving gate; the ledger has it, and all serves as before.
        EngineError: none runs, or it failed.
    """
    if not 0 < share <= 1:
        raise UsageError(f"a shadow's share is above 0 and at most 1, not {share:g}")
    with alone(home, shadow.project):
        route = _route(home, shadow.project, engine)
        if shadow.name == route.champion.name:
            raise UsageError(f"{shadow.name} is the champion: a copy would tell nothing")
        new = msgspec.structs.replace(route, shadow=shadow, shadow_share=share)
        what = f"{shadow.name} gets a copy of {share:.1%} of the conversations"
        intent = _intent(home, new, shadow, what, by, reason)
        begin(home, intent)
        if not is_external(shadow):
            found = _loaded(home, intent, route, engine, verify)
            intent = msgspec.structs.replace(intent, evidence={"serving": found})
            begin(home, intent)
        done = reroute(home, intent, route)
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
        intent = _intent(home, new, route.shadow, what, by, reason, evidence)
        begin(home, intent)
        done = reroute(home, intent, route)
        if engine is not None:
            unload(home, route.shadow, engine)
        return done


def set_fallbacks(
    home: Home, project: str, fallbacks: tuple[str, ...], *, by: str, reason: str
) -> ProjectRoute:
    """
    Args:
        fallbacks: names as in [serving] fallbacks; () = those that the project's file has.
    """
    with alone(home, project):
        route = _route(home, project, None)
        new = msgspec.structs.replace(route, fallbacks=fallbacks)
        what = f"where the champion fails, {', '.join(fallbacks) or 'whom its file names'} answer"
        intent = _intent(home, new, route.champion, what, by, reason)
        begin(home, intent)
        return reroute(home, intent, route)


def _route(home: Home, project: str, engine: AdapterHost | None) -> ProjectRoute:
    settle(home, project, None, engine)
    route = read(home).projects.get(project)
    if route is None:
        raise UsageError(f"nothing serves {project} yet: `flywheel serve` begins")
    return route


def _intent(
    home: Home,
    new: ProjectRoute,
    target: Deployment,
    what: str,
    by: str,
    reason: str,
    evidence: dict[str, Any] | None = None,
) -> Intent:
    return Intent(
        id=new_ulid(),
        kind="routing",
        project=new.project,
        target=target,
        replaces=new.champion,
        reason=f"{what}: {reason}" if reason else what,
        by=by,
        at=moment(home),
        run_id=target.run_id,
        route=new,
        share=None if target == new.champion else new.shadow_share,
        evidence=evidence or {},
    )


def _loaded(
    home: Home,
    intent: Intent,
    route: ProjectRoute,
    engine: AdapterHost | None,
    verify: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Where it cannot be, or is not what was trained, all is as it was before."""
    shadow = intent.target
    if engine is None:
        forget(home, intent)
        raise EngineError(f"no engine runs that could serve {shadow.name}")
    try:
        must_suit(route, shadow)
        load(home, shadow, engine)
        found = verify()
        failpoint("promotion.after_check")
        return found
    except (Refused, CorruptFile) as error:
        unload(home, shadow, engine)
        conclude(home, intent, "refused", "serving", str(error))
        raise Refused(f"{shadow.name} is asked no copies: {error}") from error
    except EngineError:
        unload(home, shadow, engine)
        forget(home, intent)
        raise

"""Canary: a challenger answers a share of the requests, through the same gate as a promotion.

Enters a candidate and a share; leaves the route that serves. The order is a promotion's: intent,
load, check, routing file, alias `challenger`, Decision. The champion is never touched.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from flywheel.errors import CorruptFile, EngineError, Refused, UsageError
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import Deployment, Outcome
from serving.intents import Intent, begin, conclude, forget, read_intent
from serving.protocol import NO_SHADOW, load, must_suit, replace_route, route_for
from serving.reconcile import AdapterHost, alone, finish, settle, unload
from serving.registry import Registry
from serving.routing import ProjectRoute, read
from storage.moments import moment


def set_canary(
    home: Home,
    candidate: Deployment,
    share: float,
    *,
    engine: AdapterHost | None,
    registry: Registry,
    verify: Callable[[], dict[str, Any]],
    by: str,
    reason: str,
) -> ProjectRoute:
    """Lets `candidate` answer `share` of the project's requests, in the place of any challenger
    before it; 0 takes it out. Again with the same share: no change.

    Args:
        engine: None = none runs, which only taking out can do without.
        verify: checks what the engine serves as the candidate; returns evidence, or refuses.

    Raises:
        UsageError: no share, the champion itself, or the candidate is not the challenger to end.
        Refused: by the serving gate; the ledger has it, and all serves as before.
        EngineError: the engine failed; nothing is decided.
        Busy: a promotion, rollback or canary of the project runs.
    """
    must_be_share(share)
    with alone(home, candidate.project):
        settle(home, candidate.project, registry, engine, again=candidate)
        route = route_for(home, candidate)
        running = route.challenger is not None and route.challenger.name == candidate.name
        if share and candidate.name == route.champion.name:
            raise UsageError(f"{candidate.name} is the champion: it answers already")
        if (not share and not running) or (running and route.share == share):
            return route
        intent = _intent(home, route, candidate, share, by, reason)
        begin(home, intent)
        if share:
            intent, new = _take_in(home, intent, route, engine, verify)
        else:
            new = replace_route(home, route, without_challenger(route))
        return _ended(home, intent, new, registry, engine)


def end_canary(
    home: Home,
    project: str,
    version: str | None,
    *,
    engine: AdapterHost | None,
    registry: Registry | None,
    by: str,
    reason: str,
    verdict: Outcome | None = None,
    evidence: dict[str, Any] | None = None,
) -> ProjectRoute:
    """Ends the canary that runs at the moment of the change, not one that was seen before it.

    Args:
        version: whose it must be; None = whichever runs.
        registry: None = MLflow is told by `settle`, which a running server calls at once.
        verdict: of the canary's tests; None = a person ends it.

    Raises:
        UsageError: no canary runs, or that of another version.
        Busy: a promotion, rollback or canary of the project runs.
    """
    with alone(home, project):
        left = read_intent(home, project)
        same = left is not None and left.kind == "canary" and not left.share
        settle(home, project, registry, engine, again=left.target if left and same else None)
        route = read(home).projects.get(project)
        runs = route.challenger if route else None
        if route is None or runs is None or version not in (None, str(runs.version)):
            what = runs.name if runs else "nothing"
            whose = f", version {version} does not" if runs else ""
            raise UsageError(
                f"{what} answers a share of {project}'s requests{whose}: nothing to end"
            )
        intent = _intent(home, route, runs, 0.0, by, reason)
        intent = msgspec.structs.replace(intent, verdict=verdict, evidence=evidence or {})
        begin(home, intent)
        new = replace_route(home, route, without_challenger(route))
        return _ended(home, intent, new, registry, engine)


def _intent(
    home: Home, route: ProjectRoute, target: Deployment, share: float, by: str, reason: str
) -> Intent:
    running = route.challenger is not None and route.challenger.name == target.name
    return Intent(
        id=new_ulid(),
        kind="canary",
        project=target.project,
        target=target,
        replaces=route.champion,
        reason=reason,
        by=by,
        at=moment(home),
        run_id=target.run_id,
        share=share,
        ends=None if running and share else route.challenger,
    )


def _ended(
    home: Home,
    intent: Intent,
    new: ProjectRoute,
    registry: Registry | None,
    engine: AdapterHost | None,
) -> ProjectRoute:
    finish(home, intent, new, registry)
    if engine is not None and intent.ends is not None:
        unload(home, intent.ends, engine)
    return new


def without_challenger(route: ProjectRoute) -> ProjectRoute:
    return msgspec.structs.replace(route, challenger=None, share=0.0, since=None)


def must_be_share(share: float) -> None:
    """
    Raises:
        UsageError: it is none.
    """
    if not 0 <= share < 1:  # NaN is no share either
        raise UsageError(
            f"a canary's share is from 0 (ends it) to below 1, not {share:g}; all requests are a "
            "promotion"
        )


def _take_in(
    home: Home,
    intent: Intent,
    route: ProjectRoute,
    engine: AdapterHost | None,
    verify: Callable[[], dict[str, Any]],
) -> tuple[Intent, ProjectRoute]:
    """Load, check, replace; where one of them says no, all is as it was before."""
    candidate = intent.target
    if engine is None:
        forget(home, intent)
        raise EngineError(f"no engine runs that could serve {candidate.name}")
    try:
        must_suit(route, candidate)
        load(home, candidate, engine)
        found = verify()
        failpoint("promotion.after_check")
        intent = msgspec.structs.replace(intent, evidence={**intent.evidence, "serving": found})
        begin(home, intent)
        goes_on = intent.ends is None and route.challenger is not None
        new = msgspec.structs.replace(
            route,
            challenger=candidate,
            share=intent.share or 0.0,
            since=route.since if goes_on and route.since else time.time_ns(),
            **(NO_SHADOW if route.shadow == candidate else {}),
        )
        return intent, replace_route(home, route, new)
    except (Refused, CorruptFile) as error:
        unload(home, candidate, engine)
        conclude(home, intent, "refused", "serving", str(error))
        raise Refused(f"{candidate.name} does not answer a share: {error}") from error
    except EngineError:
        unload(home, candidate, engine)
        forget(home, intent)
        raise

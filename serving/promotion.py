"""Promotion: intent, load, check, routing file, MLflow's aliases, Decision, in this order.

The routing file is the authority: before it is replaced nothing has happened, from then on
everything has. Whatever dies in between, `reconcile` brings the rest in line with it. One promotion
of a project runs at a time, and until the file is replaced the old champion serves on.
"""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from flywheel.errors import CorruptFile, EngineError, Refused, UsageError
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import Deployment
from flywheel.progress import report
from serving import routing
from serving.canary import set_canary, without_challenger
from serving.intents import Intent, aliases_of, begin, conclude, forget, read_intent
from serving.protocol import load, must_suit, replace_route, route_for, with_champion
from serving.reconcile import (
    AdapterHost,
    alone,
    finish,
    reconcile,
    serves_already,
    settle,
    unload,
)
from serving.registry import Registry
from serving.routing import ProjectRoute
from storage.moments import moment

__all__ = ["promote", "reconcile", "rollback", "set_canary"]

_log = logging.getLogger(__name__)


def promote(
    home: Home,
    candidate: Deployment,
    *,
    engine: AdapterHost,
    registry: Registry,
    verify: Callable[[], dict[str, Any]],
    reason: str,
    by: str,
    run_id: str | None = None,
    evaluation_id: str | None = None,
    evidence: dict[str, Any] | None = None,
    against: str | None = None,
) -> Deployment:
    """Makes `candidate` the champion of its project. Again for the same candidate: no change.

    Args:
        verify: checks what the engine serves as the candidate; returns evidence, or refuses.
        against: the champion that it was compared with; None = the one the evaluation names.

    Raises:
        Refused: by the serving gate. It could not be loaded, is not what was trained, or its
            champion was replaced meanwhile. The ledger has it; the old champion serves on.
        EngineError: the engine failed, nothing is decided, the old champion serves on.
        Busy: another promotion of the project runs.
    """
    with alone(home, candidate.project):
        settle(home, candidate.project, registry, engine, again=candidate)
        route = route_for(home, candidate)
        if route.champion.name == candidate.name:
            with serves_already(candidate):
                registry.set_aliases(candidate.project, aliases_of(route))
            return route.champion
        intent = Intent(
            id=new_ulid(),
            kind="promotion",
            project=candidate.project,
            target=candidate,
            replaces=route.champion,
            reason=reason,
            by=by,
            at=moment(home),
            run_id=run_id,
            evaluation_id=evaluation_id,
            evidence=evidence or {},
        )
        begin(home, intent)
        intent, new = _take_effect(home, intent, route, engine, verify, against)
        finish(home, intent, new, registry)
        if route.previous is not None:
            unload(home, route.previous, engine)
        return candidate


def _take_effect(
    home: Home,
    intent: Intent,
    route: ProjectRoute,
    engine: AdapterHost,
    verify: Callable[[], dict[str, Any]],
    against: str | None,
) -> tuple[Intent, ProjectRoute]:
    """Load, check, replace; where one of them says no, all is as it was before."""
    candidate = intent.target
    try:
        must_suit(route, candidate, against or _compared_with(home, intent.evaluation_id))
        load(home, candidate, engine)
        found = verify()
        failpoint("promotion.after_check")
        intent = msgspec.structs.replace(intent, evidence={**intent.evidence, "serving": found})
        begin(home, intent)
        return intent, replace_route(home, route, with_champion(route, candidate))
    except (Refused, CorruptFile) as error:
        unload(home, candidate, engine)
        conclude(home, intent, "refused", "serving", str(error))
        raise Refused(f"{candidate.name} was not promoted: {error}") from error
    except EngineError:
        unload(home, candidate, engine)
        forget(home, intent)
        raise


def rollback(
    home: Home,
    project: str,
    *,
    engine: AdapterHost | None,
    registry: Registry | None,
    by: str,
    reason: str,
) -> Deployment:
    """Lets the previous deployment answer again; the one it replaces becomes the previous. A canary
    ends with it: what answers afterwards is one known model.

    After a kill, again finishes the rollback that took effect instead of undoing it.

    engine: None = none runs; the next one starts with what the routing file then names. One that
    fails does not stop a rollback either.
    registry: None = MLflow is told by `settle`, which a running server calls at once.

    Raises:
        UsageError: nothing to go back to.
        Refused: the engine runs and cannot serve the previous one.
    """
    with alone(home, project):
        killed = read_intent(home, project)
        settle(home, project, registry, engine)
        route = routing.read(home).projects.get(project)
        if route is None or route.previous is None:
            raise UsageError(f"{project} has no previous deployment to go back to")
        unsaid = ("rollback", False, route.champion)
        if killed and (killed.kind, killed.decided, killed.target) == unsaid:
            return route.champion
        intent = Intent(
            id=new_ulid(),
            kind="rollback",
            project=project,
            target=route.previous,
            replaces=route.champion,
            reason=reason,
            by=by,
            at=moment(home),
            ends=route.challenger,
        )
        begin(home, intent)
        new = _go_back(home, intent, route, engine)
        finish(home, intent, new, registry)
        if route.challenger is not None and engine is not None:
            unload(home, route.challenger, engine)
        return route.previous


def _go_back(
    home: Home, intent: Intent, route: ProjectRoute, engine: AdapterHost | None
) -> ProjectRoute:
    """Load, replace. What was taken out does not come back as who stands in for the champion."""
    try:
        if engine is not None:
            load(home, intent.target, engine)
    except Refused as error:
        conclude(home, intent, "refused", "serving", str(error))
        raise
    except EngineError as error:
        _log.warning("rolling %s back without its engine: %s", intent.project, error)
    back = without_challenger(with_champion(route, intent.target))
    new = replace_route(home, route, msgspec.structs.replace(back, rolled_back=True))
    report("answering from now on", 0, None, intent.target.name)
    return new


def _compared_with(home: Home, evaluation_id: str | None) -> str | None:
    from storage.queries import records

    if evaluation_id is None:
        return None
    found = (each for each in records(home, "evaluation") if each.id == evaluation_id)
    return next((each.champion for each in found), None)

"""The steps that every change of what serves is made of: suit, load, replace the route, decide.

Each takes the route as it was seen, so that whatever changed meanwhile is told and never lost.
"""

import contextlib
import time
from typing import Any

import msgspec

from flywheel.errors import Busy, Refused
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.lineage import Deployment
from serving import routing
from serving.intents import Intent, decide, forget
from serving.reconcile import AdapterHost
from serving.routing import ProjectRoute

_TRIES = 50
NO_SHADOW: dict[str, Any] = {"shadow": None, "shadow_share": 0.0}
"""Of a route; who answers itself is asked no copies any more."""


def route_for(home: Home, candidate: Deployment) -> ProjectRoute:
    """The project's route; one that nothing serves yet is served by its base model."""
    route = routing.read(home).projects.get(candidate.project)
    if route is not None:
        return route
    base = routing.base_deployment(candidate.project, candidate.base_model)
    return ProjectRoute(project=candidate.project, base_model=candidate.base_model, champion=base)


def must_suit(route: ProjectRoute, candidate: Deployment, against: str | None = None) -> None:
    """
    Args:
        against: the champion that it was compared with; None = it does not matter.

    Raises:
        Refused: another base model, or another champion than the one it was compared with.
    """
    if candidate.base_model != route.base_model:
        raise Refused(
            f"it was trained on {candidate.base_model}, the project serves {route.base_model}"
        )
    if against is not None and against != route.champion.name:
        raise Refused(
            f"it was compared with {against}, and {route.champion.name} has been promoted since: "
            "evaluate it against that one"
        )


def load(home: Home, deployment: Deployment, engine: AdapterHost) -> None:
    if deployment.adapter is not None:
        engine.load_adapter(deployment.name, home.path(deployment.adapter))
    failpoint("promotion.after_load")


def with_champion(seen: ProjectRoute, champion: Deployment) -> ProjectRoute:
    """`seen` with `champion` in the place of its own, which becomes the previous one. A canary of
    the new champion has come to its end; one of another goes on."""
    ends = seen.challenger is not None and seen.challenger.name == champion.name
    return msgspec.structs.replace(
        seen,
        champion=champion,
        previous=seen.champion,
        rolled_back=False,
        challenger=None if ends else seen.challenger,
        share=0.0 if ends else seen.share,
        since=None if ends or seen.challenger is None else time.time_ns(),
        **(NO_SHADOW if seen.shadow is not None and seen.shadow.name == champion.name else {}),
    )


def replace_route(home: Home, seen: ProjectRoute, new: ProjectRoute) -> ProjectRoute:
    """Puts `new` in the place of `seen`, whatever other projects do meanwhile.

    Raises:
        Refused: the project's own route is not as `seen` any more.
        Busy: other projects' routes change all the time.
    """
    for _ in range(_TRIES):
        now = routing.read(home)
        if now.projects.get(seen.project, seen) != seen:
            raise Refused(f"the route of {seen.project} was changed meanwhile by something else")
        changed = {**now.projects, seen.project: new}
        with contextlib.suppress(Busy):
            routing.replace(home, msgspec.structs.replace(now, projects=changed))
            failpoint("promotion.after_routing")
            return new
    raise Busy(f"{home.routing} changes faster than it can be replaced; try again")


def reroute(home: Home, intent: Intent, seen: ProjectRoute) -> ProjectRoute:
    """Puts the intent's route in the place of `seen`, and into the ledger. MLflow has nothing to
    learn of it.

    Raises:
        Refused, Busy: as `replace_route`.
    """
    assert intent.route is not None
    done = replace_route(home, seen, intent.route)
    decide(home, intent, "routed", "person", intent.reason)
    forget(home, intent)
    return done

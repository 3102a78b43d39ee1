"""Who answers until something is promoted: whom the project's file names first, a provider or else
the base model.

Enters a project at the server's start; leaves its route and, where another one answered before, a
Decision `routed`. It changes as any route does, by an intent first; what was promoted, rolled back
or is tried out is never touched.
"""

import msgspec

from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import Deployment
from flywheel.project import Project
from serving.intents import Intent, begin
from serving.protocol import replace_route, reroute, with_champion
from serving.reconcile import alone, settle
from serving.routing import ProjectRoute, first_deployment, read, still_first
from storage.inbox import Inbox
from storage.moments import moment


def put_first(home: Home, project: Project, base_model: str) -> None:
    """Again: no change.

    Raises:
        Busy: a change of who serves the project runs.
    """
    first = first_deployment(project, base_model)
    if not still_first(read(home).projects.get(project.name), first):
        return
    with alone(home, project.name):
        settle(home, project.name, None, None, again=first)
        before = read(home).projects.get(project.name)
        if before is None:
            Inbox(home).append([first], name=f"deployment:{first.name}")
            route = ProjectRoute(project=project.name, base_model=base_model, champion=first)
            replace_route(home, route, route)
        elif still_first(before, first):
            intent = _intent(home, before, first)
            begin(home, intent)
            reroute(home, intent, before)


def _intent(home: Home, before: ProjectRoute, first: Deployment) -> Intent:
    put = with_champion(before, first)
    return Intent(
        id=new_ulid(),
        kind="routing",
        project=first.project,
        target=first,
        replaces=before.champion,
        reason="the project's file says who answers first, and nothing was promoted yet",
        by="flywheel serve",
        at=moment(home),
        # There is nothing to roll back to: no one was promoted.
        route=msgspec.structs.replace(put, previous=None, base_model=first.base_model),
    )

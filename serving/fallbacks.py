"""Who may answer a request, in order: the deployment that was chosen, then those that stand in.

Enters a route and the project's [serving] section; leave deployments. What the routing file names
goes before what the section does. A client that names one deployment gets that one or an error.
"""

from flywheel.lineage import Deployment
from flywheel.serving_section import ServingSection
from serving.routing import ProjectRoute, base_deployment, external_deployment


def in_order(
    chosen: Deployment, route: ProjectRoute | None, serving: ServingSection
) -> list[Deployment]:
    """Each once. A challenger that fails is the champion's to answer for first: trying it out must
    cost nobody an answer."""
    if route is None:
        return [chosen]
    named = route.fallbacks or tuple(
        one for name in serving.fallbacks if (one := fallback(name, route)) is not None
    )
    return list({one.name: one for one in (chosen, route.champion, *named)}.values())


def fallback(name: str, route: ProjectRoute) -> Deployment | None:
    """By the name that [serving] fallbacks has: `previous` (None where nothing was replaced yet),
    `base`, or a provider's."""
    if name == "previous":
        return route.previous
    if name == "base":
        return base_deployment(route.project, route.base_model)
    return external_deployment(route.project, name, route.base_model)

"""Who may answer a request, in order: the deployment that was chosen, then those that stand in.

Enters a route and the project's [serving] section; leave deployments. Where the routing file names
any, they stand in the place of the section's. Names are looked up at each request: `previous` is
whom the champion replaced, as of now. A client that names one deployment gets that one or an error.
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
    named = (fallback(name, route) for name in route.fallbacks or serving.fallbacks)
    ways = (chosen, route.champion, *named)
    return list({one.name: one for one in ways if one is not None}.values())


def fallback(name: str, route: ProjectRoute) -> Deployment | None:
    """By its name: `previous`, `base`, or a provider's. None = there is no previous one, or a
    rollback took it out."""
    if name == "previous":
        return None if route.rolled_back else route.previous
    if name == "base":
        return base_deployment(route.project, route.base_model)
    return external_deployment(route.project, name, route.base_model)

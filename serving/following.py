"""The routing file as the gateway sees it: read again whenever it was replaced.

A request keeps the deployment it was given; the next one sees the new file. A file that cannot be
read leaves the last good one in force, and `problem` says so.
"""

import os

from flywheel.errors import FlywheelError
from flywheel.home import Home
from flywheel.lineage import Deployment
from serving.keys import ANYBODY, Caller
from serving.refusal import ApiError
from serving.routing import ProjectRoute, Routing, read, standing

Mark = tuple[int, int, int] | None


class Following:
    def __init__(self, home: Home, projects: frozenset[str]) -> None:
        self._home, self._projects = home, projects
        self._path = str(home.routing)
        self._mark: Mark = None
        self._routing = Routing()
        self._names: dict[str, Deployment] = {}
        self.problem: str | None = None
        """Why the file that lies there now is not in force; None = it is."""

    @property
    def routing(self) -> Routing:
        self._refresh()
        return self._routing

    def resolve(self, model: str, caller: Caller = ANYBODY) -> Deployment:
        """The deployment that answers to `model`: a project's name or a deployment's own.

        Raises:
            ApiError: 404: no such model is served here, or none that this caller may know of; 503:
                nothing is served yet.
        """
        self._refresh()
        if not self._names:
            raise ApiError(503, "nothing is served yet: the engine is starting", retry_after=5)
        deployment = self._names.get(model)
        if deployment is None or not caller.may(deployment.project):
            served = ", ".join(sorted(self.names(caller))) or "none"
            raise ApiError(
                404,
                f"the model {model[:100]!r} is not served here; served: {served}",
                param="model",
                code="model_not_found",
            )
        return deployment

    def route(self, model: str) -> ProjectRoute | None:
        """The route that chooses for `model`; None = it names one deployment itself."""
        self._refresh()
        return self.route_as_known(model)

    def route_as_known(self, model: str) -> ProjectRoute | None:
        """By the file as it was last looked at."""
        return self._routing.projects.get(model) if model in self._projects else None

    def names(self, caller: Caller = ANYBODY) -> dict[str, Deployment]:
        self._refresh()
        return {name: one for name, one in self._names.items() if caller.may(one.project)}

    def routes(self) -> list[ProjectRoute]:
        """Those of the projects that this server is for."""
        return [route for name, route in self.routing.projects.items() if name in self._projects]

    def _refresh(self) -> None:
        mark = self._look()
        if mark == self._mark:
            return
        if mark is None:
            # The file went away under a running server: it keeps serving what it served.
            self._mark, self.problem = mark, f"{self._home.routing} is gone"
            return
        try:
            routing = read(self._home)
        except (FlywheelError, OSError) as error:
            self.problem = str(error)
        else:
            self._routing, self.problem = routing, None
            self._names = _names(
                [routing.projects[name] for name in self._projects & set(routing.projects)]
            )
        self._mark = mark

    def _look(self) -> Mark:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size


def _names(routes: list[ProjectRoute]) -> dict[str, Deployment]:
    names: dict[str, Deployment] = {}
    for route in routes:
        names |= {deployment.name: deployment for deployment in standing(route)}
        names[route.project] = route.champion
    return names

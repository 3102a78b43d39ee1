"""The watch over running canaries: a challenger that breaks a guard rail is taken out in seconds.

In the server's own process. Enters what was seen of each request, of all gateway processes; leaves
the canary's end by its protocol. What it counted stays in the home, so that a restart goes on.
MLflow never comes in here: a process of its own tells it, of this and of every other decision that
had no time for it (`flywheel rollback`).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from flywheel import durable
from flywheel.errors import FlywheelError
from flywheel.home import Home
from flywheel.serving_section import ReleaseSection
from serving.canary import end_canary
from serving.following import Following
from serving.intents import read_intent
from serving.observing import Seen
from serving.rails import Breach, Rails
from serving.routing import ProjectRoute

BY = "guard rails"
_LOOK_S, _KEEP_S, _TELL_S = 0.2, 1.0, 5.0
_log = logging.getLogger("flywheel.server")


class Watched(msgspec.Struct):
    """One canary, from its beginning to its end."""

    champion: str
    challenger: str
    since: int | None
    """As in the route: another canary of the same version has another one."""
    rails: Rails = msgspec.field(default_factory=Rails)

    def of(self, route: ProjectRoute) -> bool:
        """Whether it is the one that the route names."""
        named = (route.champion.name, route.challenger and route.challenger.name, route.since)
        return (self.champion, self.challenger, self.since) == named


def path_of(home: Home, project: str) -> Path:
    return home.releases / f"{project}.json"


def watched(home: Home, project: str) -> Watched | None:
    """What the home keeps of the project's last canary; None = nothing that can be read."""
    try:
        return msgspec.json.decode(path_of(home, project).read_bytes(), type=Watched)
    except (OSError, msgspec.DecodeError):
        return None


class Watch:
    def __init__(
        self,
        home: Home,
        projects: frozenset[str],
        release: Callable[[str], ReleaseSection],
        tell: Callable[[], None],
    ) -> None:
        """
        Args:
            release: each project's section as it is now.
            tell: brings MLflow in line with what was decided; may take seconds.
        """
        self._home, self._projects = home, projects
        self._release, self._tell = release, tell
        self._following = Following(home, projects)
        self._watched: dict[str, Watched] = {}
        self._changed: set[str] = set()
        self._unkept: set[str] = set()
        self._kept = self._told = 0.0

    def hear(self, seen: Seen) -> None:
        if not seen.canary or seen.shadow:
            return
        one = self._of(seen.project)
        if one is not None and seen.deployment in (one.champion, one.challenger):
            challenger = seen.deployment == one.challenger
            one.rails.hear(seen, challenger, self._release(seen.project))
            self._changed.add(seen.project)

    async def keep(self) -> None:
        """Until it is cancelled: looks some times a second, wherever anything was heard."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.look()
            except (FlywheelError, OSError) as error:
                _log.error("the guard rails could not act, and try again: %s", error)

    async def look(self) -> None:
        """
        Raises:
            FlywheelError: a rail broke and its challenger could not be taken out; the next look
                tries again.
        """
        for project in sorted(self._changed):
            one = self._of(project)
            breach = one.rails.breach(self._release(project)) if one else None
            if one and breach:
                await asyncio.to_thread(self._keep, project, one)
                await asyncio.to_thread(self._take_out, project, one, breach)
                self._told = 0.0
            self._changed.discard(project)
            self._unkept.add(project)
        now = time.monotonic()
        if self._unkept and now - self._kept >= _KEEP_S:
            self._kept = now
            for project in sorted(self._unkept):
                if (one := self._of(project)) is not None:
                    await asyncio.to_thread(self._keep, project, one)
            self._unkept.clear()
        if now - self._told >= _TELL_S and self._untold():
            await asyncio.to_thread(self._tell)
            self._told = time.monotonic()

    def _of(self, project: str) -> Watched | None:
        """The canary that runs now; None = none does."""
        route = self._following.routing.projects.get(project)
        if project not in self._projects or route is None:
            return None
        if route.challenger is None or not route.share:
            self._watched.pop(project, None)
            return None
        one = self._watched.get(project)
        if one is None or not one.of(route):
            one = watched(self._home, project)
            if one is None or not one.of(route):
                one = Watched(route.champion.name, route.challenger.name, route.since)
            self._watched[project] = one
        return one

    def _take_out(self, project: str, one: Watched, breach: Breach) -> None:
        version = one.challenger.removeprefix(f"{project}-v")
        section = self._release(project)
        _log.warning("%s is taken out: %s", one.challenger, breach.words)
        end_canary(
            self._home,
            project,
            version,
            engine=None,
            registry=None,
            by=BY,
            reason=breach.words,
            verdict="rolled_back",
            evidence={"rail": breach.rail, "rails": told(one.rails, section)},
        )

    def _keep(self, project: str, one: Watched) -> None:
        durable.write(path_of(self._home, project), msgspec.json.encode(one))

    def _untold(self) -> bool:
        if not any(self._home.promotions.glob("*.json")):
            return False
        left = (read_intent(self._home, project) for project in self._projects)
        return any(one is not None and one.decided for one in left)


def told(rails: Rails, section: ReleaseSection) -> list[dict[str, object]]:
    """Each rail as plain data: counts, what is allowed, how near to a breach it is (0 to 1)."""
    return [
        {
            "rail": one.rail,
            "champion": [one.champion.x, one.champion.n],
            "challenger": [one.challenger.x, one.challenger.n],
            "allowed": one.allowed,
            "evidence": round(one.evidence, 3),
        }
        for one in rails.standing(section)
    ]

"""Live reload: the projects' files are looked at every second, or at once on SIGHUP.

A sound change holds for requests that come from then on; one that is not sound changes nothing, and
`problem` says why. What only a start can change is said by name and left as it was.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from flywheel.errors import FlywheelError
from flywheel.project import Project, load_project

_LOOK_S = 1.0
_STARTED_WITH = (
    "engine", "engine_url", "engine_urls", "replicas", "preset", "device", "dtype", "gpu_memory",
    "max_rank", "context", "host", "port", "workers", "tls_cert", "tls_key", "log", "otlp_traces",
)  # fmt: skip
"""Of the first project's [serving], which is the server's."""
_log = logging.getLogger("flywheel.server")


class Reloading:
    def __init__(self, projects: Sequence[Project]) -> None:
        self._projects = list(projects)
        self._marks = self._look()
        self._asked = asyncio.Event()
        self.problem: str | None = None
        """Why the files that lie there now are not in force; None = they are."""

    def now(self) -> None:
        """Looks at once, and takes what is there."""
        self._marks = []
        self._asked.set()

    async def keep(self, changed: Callable[[], None]) -> None:
        """Until it is cancelled: calls `changed` after each sound change."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            marks = self._look()
            if marks != self._marks:
                self._marks = marks
                if self._take():
                    changed()

    def _take(self) -> bool:
        try:
            now = [load_project(project.folder) for project in self._projects]
            _must_be_same(self._projects, now)
        except FlywheelError as error:
            self.problem = str(error)
            _log.error("not reloaded, all goes on as it was: %s", error)
            return False
        before, self.problem = self.problem, _left(self._projects, now)
        if self.problem:
            _log.warning("%s", self.problem)
        well = ": all is well again" if before and not self.problem else ""
        _log.info("the projects' files were read again%s", well)
        return True

    def _look(self) -> list[tuple[int, int] | None]:
        return [_mark(project.folder / "flywheel.toml") for project in self._projects]


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _must_be_same(old: Sequence[Project], new: Sequence[Project]) -> None:
    for before, after in zip(old, new, strict=True):
        if before.name != after.name:
            raise FlywheelError(
                f"{after.folder} is now the project {after.name!r}: start the server again to "
                f"serve it in place of {before.name!r}"
            )


def _left(old: Sequence[Project], new: Sequence[Project]) -> str | None:
    """What was changed and holds only from the next start on."""
    names = [
        f"[serving] {name}"
        for name in _STARTED_WITH
        if getattr(old[0].serving, name) != getattr(new[0].serving, name)
    ]
    if [one.serving.first for one in old] != [one.serving.first for one in new]:
        names.append("[serving] first")
    if [one.model for one in old] != [one.model for one in new]:
        names.append("[model] base")
    return f"{', '.join(names)}: holds from the next start on" if names else None

"""Reconciling: whatever a killed process left is brought in line with the routing file.

The engine, MLflow's aliases and the ledger follow that file; it is never changed here. Everything
may be done twice, and is done alone: one process a project.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from flywheel.errors import Busy, EngineError, FlywheelError
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import Decision, Deployment, Outcome
from flywheel.progress import report
from serving import routing
from serving.intents import (
    Intent,
    aliases_of,
    begin,
    conclude,
    decide,
    forget,
    read_intent,
    took_effect,
)
from serving.registry import Registry
from serving.routing import ProjectRoute, standing
from storage.inbox import Inbox
from storage.locks import held
from storage.moments import moment

_WAIT_S = 120.0
_log = logging.getLogger(__name__)


class AdapterHost(Protocol):
    """What a promotion asks of a running engine; see `serving.engines.contract`."""

    def load_adapter(self, name: str, folder: Path) -> None: ...
    def unload_adapter(self, name: str) -> None: ...


def reconcile(home: Home, registry: Registry, engine: AdapterHost | None) -> list[str]:
    """Brings engine, MLflow and ledger in line with the routing file; to be called at start.

    Returns what it did, a line each; [] = all was in line. A project whose promotion is running in
    a living process is left to that.
    """
    from serving.registry_pages import write_pages
    from storage.committer import commit

    routed = routing.read(home).projects
    left = {path.stem for path in home.promotions.glob("*.json")}
    told: list[str] = []
    for project in sorted(left | set(routed)):
        try:
            with alone(home, project, wait_s=0.2):
                done = settle(home, project, registry, engine) + _align(home, project, registry)
                if done:
                    with contextlib.suppress(Busy):  # then they are as of the last commit
                        commit(home, wait_s=5)
                    write_pages(home, registry, project)
                told += done
        except Busy:
            told.append(f"{project}: a promotion is under way, left to it")
        except FlywheelError as error:
            # What answers requests does not need the registry: it must start all the same.
            _log.error("%s could not be put in line: %s", project, error)
            told.append(f"{project}: could not be put in line: {error}")
    return told


def settle(
    home: Home,
    project: str,
    registry: Registry | None,
    engine: AdapterHost | None,
    *,
    again: Deployment | None = None,
) -> list[str]:
    """Ends what a killed process left, or one that had no time for MLflow, the way the routing file
    says that it went.

    registry: None = MLflow is told another time.
    again: what is about to be promoted; a killed try of the same leaves no Decision.
    """
    intent = read_intent(home, project)
    if intent is None:
        return []
    route = routing.read(home).projects.get(project)
    what = f"{project}: {intent.kind} of {intent.target.name}"
    if route is not None and took_effect(intent, route):
        finish(home, intent, route, registry)
        if engine is not None and intent.ends is not None:
            unload(home, intent.ends, engine)
        if intent.decided:
            return [f"{what} took effect; MLflow knows now"]
        return [f"{what} was interrupted after it took effect; finished"]
    if again is not None and again.name == intent.target.name:
        forget(home, intent)
        return []
    if engine is not None:
        unload(home, intent.target, engine)
    reason = f"the {intent.kind} was interrupted before it took effect: {intent.reason}"
    conclude(home, intent, "abandoned", "serving", reason)
    return [f"{what} was interrupted before it took effect; abandoned"]


def _align(home: Home, project: str, registry: Registry) -> list[str]:
    route = routing.read(home).projects.get(project)
    if route is None:
        return []
    told = []
    wanted = aliases_of(route)
    now = registry.aliases(project)
    if any(now.get(alias) != version for alias, version in wanted.items()):
        registry.set_aliases(project, wanted)
        told.append(f"{project}: MLflow's aliases set to {route.champion.name} as champion")
    if _ledger_differs(home, route):
        _record_found(home, route)
        told.append(f"{project}: the ledger now has {route.champion.name} as champion")
    return told


def _ledger_differs(home: Home, route: ProjectRoute) -> bool:
    """Whether the last change of champion in the ledger is another one than what serves.

    While segments wait for the committer nobody can say; the next start will.
    """
    from storage.queries import records

    if Inbox(home).pending():
        return False
    made: list[Decision] = [
        decision
        for decision in records(home, "decision", project=route.project)
        if decision.outcome in ("promoted", "rolled_back", "reconciled")
    ]
    last = max(made, key=lambda decision: (decision.at, decision.id), default=None)
    if last is None:
        return route.champion.version != 0
    return last.deployment != route.champion.name


def _record_found(home: Home, route: ProjectRoute) -> None:
    found = Decision(
        id=new_ulid(),
        project=route.project,
        outcome="reconciled",
        gate="serving",
        reason="the routing file names it, and no decision in the ledger says why",
        by="flywheel",
        at=moment(home),
        run_id=route.champion.run_id,
        deployment=route.champion.name,
        replaced=route.previous.name if route.previous else None,
    )
    Inbox(home).append([found, route.champion])


def finish(home: Home, intent: Intent, route: ProjectRoute, registry: Registry | None) -> None:
    """What follows the routing file, after it was replaced; may be done twice.

    registry: None = the ledger alone learns of it now, and the intent stays for `settle`.

    Raises:
        FlywheelError: MLflow or the inbox cannot be written to. The champion serves nevertheless.
    """
    report("telling the ledger" if registry is None else "telling MLflow and the ledger", 0, None)
    outcome, gate = _ENDS[intent.kind]
    if intent.verdict is not None:
        outcome, gate = intent.verdict, "canary"
    try:
        decide(home, intent, outcome, gate, intent.reason)
        if registry is None:
            begin(home, msgspec.structs.replace(intent, decided=True))
        else:
            _tell(intent, route, registry)
            forget(home, intent)
    except FlywheelError as error:
        done = "does not answer a share any more" if intent.share == 0 else "serves now"
        raise _not_told(intent.target, done, error) from error


def _tell(intent: Intent, route: ProjectRoute, registry: Registry) -> None:
    """MLflow's aliases, and what decided of the version."""
    wanted = aliases_of(route)
    gone = [one.registry_version for one in (intent.target, intent.ends) if one is not None]
    if registry.aliases(intent.project).get("challenger") in gone:
        wanted.setdefault("challenger", None)
    registry.set_aliases(intent.project, wanted)
    learned = {"flywheel.decision": intent.id, "flywheel.evaluation": intent.evaluation_id}
    registry.tag(intent.target, {key: value for key, value in learned.items() if value})
    failpoint("promotion.after_alias")


@contextlib.contextmanager
def serves_already(deployment: Deployment) -> Iterator[None]:
    """Around what only tells MLflow so: where that fails, the error says what is the case."""
    try:
        yield
    except FlywheelError as error:
        raise _not_told(deployment, "serves", error) from error


def _not_told(deployment: Deployment, done: str, error: FlywheelError) -> FlywheelError:
    return type(error)(
        f"{deployment.name} {done}, but that could not be written down: {error}. "
        "The next start, or the same command again, does it"
    )


_ENDS: dict[str, tuple[Outcome, str]] = {
    "promotion": ("promoted", "serving"),
    "rollback": ("rolled_back", "person"),
    "canary": ("canary", "serving"),
    "routing": ("routed", "person"),
}
"""How an intent that took effect stands in the ledger: outcome and gate."""


def unload(home: Home, deployment: Deployment, engine: AdapterHost) -> None:
    """Unless it serves. An engine that cannot even unload must not hide why we got here."""
    route = routing.read(home).projects.get(deployment.project)
    names = {each.name for each in standing(route)} if route else set()
    if deployment.adapter is not None and deployment.name not in names:
        try:
            engine.unload_adapter(deployment.name)
        except EngineError as error:
            _log.warning("%s stays loaded: %s", deployment.name, error)


@contextlib.contextmanager
def alone(home: Home, project: str, wait_s: float | None = None) -> Iterator[None]:
    """One process a project at a time; None = waits as long as a promotion may take."""
    wait_s = _WAIT_S if wait_s is None else wait_s
    busy = f"another promotion or rollback of {project} runs; try again when it is done"
    with held(home.locks / f"promotion-{project}.lock", wait_s=wait_s, busy=busy):
        yield


def main(arguments: list[str] | None = None) -> int:
    """`python -m serving.reconcile HOME [ENGINE_URL]`: MLflow's 200 MB stay out of the caller."""
    from serving.engines.client import EngineClient
    from serving.engines.reach import read_access

    given = sys.argv[1:] if arguments is None else arguments
    home = Home(Path(given[0]))
    engine = EngineClient(given[1], access=read_access(home)) if given[1:] else None
    for line in reconcile(home, Registry(home), engine):
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Release: after each grading interval the canary that runs is promoted, rolled back, ended for
want of evidence, or goes on. Guard rails do not wait for this: the server's own watch acts on them.

Enters a project; leaves what was decided, with the whole evidence in the Decision.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from prefect import task

from flywheel.errors import Refused
from flywheel.ids import new_ulid
from flywheel.lineage import Decision, Deployment, Outcome
from flywheel.progress import report
from flywheel.project import Project, load_project
from tasks.canary import answering, give_share, probed, written_down
from tasks.serving_gate import serving_check
from tasks.step import worth_another_try
from tasks.turns import Turn, engine, home

if TYPE_CHECKING:
    from serving.release import Standing

BY = "reward test"
_ENDS: dict[str, Outcome] = {"roll back": "rolled_back", "not enough evidence": "inconclusive"}


@task(
    retries=2,
    retry_delay_seconds=[1, 5],
    retry_condition_fn=worth_another_try,
    timeout_seconds=1800,
)
def look(folder: str) -> dict[str, Any] | None:
    """Looks at the project's canary, or else its shadow, and acts. None = neither runs.

    Returns: the standing, and `decided`: what was done, None where it goes on.
    """
    from serving.release import standing

    project = load_project(Path(folder))
    found = standing(home(), project.name, project.release, count=True)
    if found is None:
        return _look_at_shadow(project)
    stands, _ = found
    report("canary", stands.units[1], project.release.max_requests, stands.says)
    decided: str | None = None
    if stands.says == "promote":
        decided = _promote(project, stands)
    elif stands.says in _ENDS:
        decided = _end(stands, _ENDS[stands.says])
    if decided is not None:
        written_down(project.name)
    return {**msgspec.to_builtins(stands), "decided": decided}


def _look_at_shadow(project: Project) -> dict[str, Any] | None:
    """One that is surely worse is asked no more; else, with enough graded, it goes on to its
    canary, where the project has a share for one."""
    from serving.presence import running_engine
    from serving.release import shadow_standing
    from serving.rerouting import end_shadow

    stands = shadow_standing(home(), project.name, project.release, count=True)
    if stands is None:
        return None
    version = None if stands.version is None else str(stands.version)
    told = msgspec.to_builtins(stands)
    decided: str | None = None
    if stands.says == "take out":
        end_shadow(
            home(), project.name, version=version, engine=running_engine(home()), by=BY,
            reason=stands.reason, evidence={"release": told},
        )  # fmt: skip
        written_down(project.name)
        decided = "taken out"
    elif stands.says == "canary" and project.release.canary and version:
        folder = str(project.folder)
        with answering(folder):
            turn, challenger, smoke = probed(folder, version, BY)
            give_share(turn, challenger, smoke, project.release.canary, BY, stands.reason)
        decided = "canary"
    return {**told, "challenger": stands.shadow, "decided": decided}


def evidence_of(stands: "Standing") -> dict[str, Any]:
    """As it stands in the Decision."""
    found: dict[str, Any] = msgspec.to_builtins(stands)
    return {"release": {name: found[name] for name in found if name not in ("project", "reason")}}


def _end(stands: "Standing", outcome: Outcome) -> str:
    from serving.canary import end_canary
    from serving.presence import running_engine
    from serving.registry import Registry

    end_canary(
        home(),
        stands.project,
        stands.challenger.removeprefix(f"{stands.project}-v"),
        engine=running_engine(home()),
        registry=Registry(home()),
        by=BY,
        reason=stands.reason,
        verdict=outcome,
        evidence=evidence_of(stands),
    )
    return outcome


def _promote(project: Project, stands: "Standing") -> str | None:
    """Through the serving gate once more: days have passed since it was let in."""
    version = stands.challenger.removeprefix(f"{project.name}-v")
    folder = str(project.folder)
    if project.gate.promotion == "asked":
        return _wait(project, stands, version)
    with answering(folder):
        turn, challenger, smoke = probed(folder, version, BY)
        return _promoted(turn, msgspec.convert(challenger, Deployment), smoke, stands)


def _promoted(
    turn: Turn, deployment: Deployment, smoke: list[str], stands: "Standing"
) -> str | None:
    """None = it was ended, or another champion came, while it was checked: nothing is done."""
    from serving.promotion import promote
    from serving.registry import Registry

    client = engine()

    def check() -> dict[str, Any]:
        if not _still(stands):
            raise Refused("its canary was ended while it was checked")
        return serving_check(turn, client, deployment, smoke)

    try:
        promote(
            home(),
            deployment,
            engine=client,
            registry=Registry(home()),
            verify=check,
            reason=stands.reason,
            by=BY,
            run_id=deployment.run_id,
            against=stands.champion,
            evidence=evidence_of(stands),
        )
    except Refused:
        # It is worth no share either; the refusal is in the ledger already.
        return _end(stands, "rolled_back") if _still(stands) else None
    return "promoted"


def _still(stands: "Standing") -> bool:
    """Whether the canary that was looked at is the one that runs."""
    from serving.routing import read

    route = read(home()).projects[stands.project]
    running = route.challenger.name if route.challenger else None
    return (route.champion.name, running, route.since) == (
        stands.champion, stands.challenger, stands.since,
    )  # fmt: skip


def _wait(project: Project, stands: "Standing", version: str) -> str:
    """The project wants a person: it is told once a canary, which goes on meanwhile."""
    from storage.inbox import Inbox
    from storage.moments import moment

    command = f"flywheel promote {project.folder} --version {version}"
    waits = Decision(
        id=new_ulid(),
        project=project.name,
        outcome="waiting",
        gate="canary",
        reason=f"{stands.reason}; it waits for a person: `{command}` promotes it",
        by=BY,
        at=moment(home()),
        deployment=stands.challenger,
        evidence=evidence_of(stands),
    )
    Inbox(home()).append([waits], name=f"waiting-{stands.challenger}-{stands.since}")
    return "waiting"

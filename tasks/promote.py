"""Promote: the serving gate loads and checks the candidate, and the routing file lets it answer."""

from typing import Any

import msgspec

from flywheel.errors import Refused
from flywheel.lineage import Deployment, Outcome
from flywheel.progress import report
from tasks.gates import Verdict, record, verdict
from tasks.serving_gate import serving_check
from tasks.step import step
from tasks.turns import Turn, engine, home, note, project_of


@step(minutes=15, keep=False)
def promote_candidate(
    turn: Turn, candidate: dict[str, Any], evaluation: Verdict, by: str = "", reason: str = ""
) -> Verdict:
    """Runs the promotion protocol; running it again after a kill goes on where it was.

    Args:
        by: the person who asked for it; "" = nobody did: the turn does it by itself, where the
            project lets it.
    """
    deployment = msgspec.convert(evaluation["challenger"], Deployment)
    said = held_back(turn, deployment, asked=bool(by))
    if said is None:
        said = promoted(turn, deployment, evaluation, by=by or "flywheel turn", reason=reason)
    else:
        outcome: Outcome = "waiting" if said.get("waiting") else "refused"
        record(
            turn,
            said,
            outcome=outcome,
            evaluation_id=evaluation["evaluation"],
            deployment=deployment.name,
        )
    note(turn, "promotion", said)
    return said


def promoted(
    turn: Turn, deployment: Deployment, evaluation: Verdict, *, by: str, reason: str = ""
) -> Verdict:
    """Load, serving gate, routing file, aliases, Decision."""
    from serving.promotion import promote
    from serving.registry import Registry
    from storage.committer import commit

    report("promoting", 0, 1)
    client = engine()
    because = f"{evaluation['reason']}; {reason}" if reason else evaluation["reason"]
    try:
        serves = promote(
            home(),
            deployment,
            engine=client,
            registry=Registry(home()),
            verify=lambda: serving_check(turn, client, deployment, evaluation["smoke"]),
            reason=because,
            by=by,
            run_id=turn.run_id,
            evaluation_id=evaluation["evaluation"],
            evidence={"overall": evaluation["overall"]},
        )
    except Refused as refusal:
        said = verdict("serving", False, str(refusal), deployment=None)
    else:
        said = verdict("serving", True, because, deployment=serves.name)
    commit(home())
    report("promoting", 1, 1)
    return said


def held_back(turn: Turn, deployment: Deployment, *, asked: bool) -> Verdict | None:
    """Why the turn's candidate may not be promoted; None = it may."""
    taken = taken_back(deployment)
    if taken:
        return verdict("person", False, taken, deployment=None)
    wants_person = project_of(turn).gate.promotion == "asked" and not asked
    if wants_person and not serves_already(deployment):
        command = f"flywheel promote {turn.folder} --version {deployment.version}"
        why = f"{deployment.name} passed and waits for a person: `{command}` promotes it"
        return verdict("person", False, why, deployment=None, waiting=True)
    return None


def serves_already(deployment: Deployment) -> bool:
    """Whether a killed run of this turn has promoted it."""
    from serving.routing import read

    route = read(home()).projects.get(deployment.project)
    return route is not None and route.champion.name == deployment.name


def taken_back(candidate: Deployment) -> str | None:
    """Why the candidate may not come back: somebody rolled it back, and a turn over the same data
    must not undo that. None = nobody did."""
    from storage.queries import records

    said = [
        one
        for one in records(home(), "decision", project=candidate.project)
        if (one.outcome == "rolled_back" and one.replaced == candidate.name)
        or (one.outcome in ("promoted", "rolled_back") and one.deployment == candidate.name)
    ]
    last = max(said, key=lambda one: one.at, default=None)
    if last is None or last.replaced != candidate.name:
        return None
    return (
        f"{candidate.name} was rolled back by {last.by} ({last.reason}), and nothing has come "
        f"since that would change it: `flywheel rollback {candidate.project}` puts it back"
    )

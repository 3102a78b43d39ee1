"""Promote: the serving gate loads and checks the candidate, and the routing file lets it answer:
all requests, or a share of them first where the project wants a canary.
"""

from typing import Any

import msgspec

from flywheel.errors import Refused
from flywheel.lineage import Deployment, Outcome
from flywheel.progress import report
from tasks.gates import Verdict, record, verdict
from tasks.serving_gate import serving_check
from tasks.step import step
from tasks.turns import Turn, engine, home, note, project_of

_ABOUT = ("promoted", "rolled_back", "inconclusive", "canary", "routed")


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
    release = project_of(turn).release
    if said is None and (release.canary or release.shadow) and not by:
        said = let_in(turn, deployment, evaluation)
    elif said is None:
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


def let_in(turn: Turn, deployment: Deployment, evaluation: Verdict) -> Verdict:
    """It is asked copies first, or answers the project's share, and its reward there decides on the
    rest (`tasks/release.py`)."""
    from serving.promotion import set_canary
    from serving.registry import Registry
    from serving.rerouting import set_shadow
    from storage.committer import commit

    release = project_of(turn).release
    if serves_already(deployment):  # its canary ended well, before a killed turn was gone on with
        return verdict("canary", True, f"{deployment.name} serves", deployment=deployment.name)
    client = engine()

    def check() -> dict[str, Any]:
        return serving_check(turn, client, deployment, evaluation["smoke"])

    given: dict[str, Any] = {
        "engine": client, "verify": check, "by": "flywheel turn", "reason": evaluation["reason"],
    }  # fmt: skip
    try:
        if release.shadow and not answers_a_share(deployment):
            set_shadow(home(), deployment, release.shadow, **given)
            what = f"is asked copies of {release.shadow:.1%} of the requests first"
        else:
            set_canary(
                home(), deployment, release.canary or 0.0, registry=Registry(home()), **given
            )
            what = f"answers {release.canary:.1%} of the requests"
    except Refused as refusal:
        return verdict("serving", False, str(refusal), deployment=None)
    commit(home())
    why = f"{deployment.name} passed, and {what}: its reward there decides on the rest"
    return verdict("canary", False, why, deployment=deployment.name, waiting=True)


def held_back(turn: Turn, deployment: Deployment, *, asked: bool) -> Verdict | None:
    """Why the turn's candidate may not be promoted; None = it may."""
    taken = taken_back(deployment)
    if taken:
        return verdict("person", False, taken, deployment=None)
    other = None if asked else in_its_canary(deployment)
    if other:
        return verdict("canary", False, other, deployment=None, waiting=True)
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


def in_its_canary(deployment: Deployment) -> str | None:
    """Why a candidate waits: another version's release is not over. None = none, or its own."""
    from serving.routing import read

    route = read(home()).projects.get(deployment.project)
    running = route and (route.challenger or route.shadow)
    if not running or running.name == deployment.name:
        return None
    return (
        f"{deployment.name} passed and waits, since the release of {running.name} is not over: "
        f"`flywheel release --version {deployment.version} --canary 10%` lets it take that place"
    )


def answers_a_share(deployment: Deployment) -> bool:
    from serving.routing import canary_of

    running = canary_of(home(), deployment.project)
    return running is not None and running[0].name == deployment.name


def taken_back(candidate: Deployment) -> str | None:
    """Why the candidate may not come back: somebody rolled it back, or its canary or shadow was
    ended, and a turn over the same data must not undo that. None = neither."""
    from storage.queries import records

    name = candidate.name
    said = [
        one
        for one in records(home(), "decision", project=candidate.project)
        if (one.outcome == "rolled_back" and one.replaced == name)
        or (one.outcome in _ABOUT and one.deployment == name)
    ]
    last = max(said, key=lambda one: one.at, default=None)
    if last is None:
        return None
    again = f"`flywheel release --version {candidate.version} --canary 10%` tries it again"
    if last.outcome == "inconclusive":
        return f"{name} had its canary, which ended without a verdict: {last.reason}; {again}"
    if last.outcome in ("canary", "routed") and last.evidence.get("share") == 0:
        return f"the release of {name} was ended by {last.by} ({last.reason}); {again}"
    if last.replaced != name:
        return None
    if last.gate == "canary":
        return f"{name} was taken out of its canary by {last.by} ({last.reason}); {again}"
    return (
        f"{name} was rolled back by {last.by} ({last.reason}), and nothing has come "
        f"since that would change it: `flywheel rollback {candidate.project}` puts it back"
    )

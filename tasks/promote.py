"""Promote: the serving gate loads and checks the candidate, and the routing file lets it answer."""

from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.errors import Refused
from flywheel.lineage import Deployment
from flywheel.progress import report
from tasks.gates import Verdict, record, verdict
from tasks.step import step
from tasks.turns import Turn, engine, home, note, run_folder

if TYPE_CHECKING:
    from serving.engines.client import EngineClient


@step(minutes=15, keep=False)
def promote_candidate(turn: Turn, candidate: dict[str, Any], evaluation: Verdict) -> Verdict:
    """Runs the promotion protocol; running it again after a kill goes on where it was."""
    from serving.promotion import promote
    from serving.registry import Registry
    from storage.committer import commit

    report("promoting", 0, 1)
    deployment = msgspec.convert(evaluation["challenger"], Deployment)
    client = engine()
    taken = taken_back(deployment)
    if taken:
        said = verdict("person", False, taken, deployment=None)
        record(turn, said, deployment=deployment.name)
        note(turn, "promotion", said)
        return said
    try:
        promoted = promote(
            home(),
            deployment,
            engine=client,
            registry=Registry(home()),
            verify=lambda: serving_check(turn, client, deployment, evaluation["smoke"]),
            reason=evaluation["reason"],
            by="flywheel turn",
            run_id=turn.run_id,
            evaluation_id=evaluation["evaluation"],
            evidence={"overall": evaluation["overall"]},
        )
    except Refused as refusal:
        said = verdict("serving", False, str(refusal), deployment=None)
    else:
        said = verdict("serving", True, evaluation["reason"], deployment=promoted.name)
    commit(home())
    report("promoting", 1, 1)
    note(turn, "promotion", said)
    return said


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


def serving_check(
    turn: Turn, client: "EngineClient", deployment: Deployment, smoke_ids: list[str]
) -> dict[str, Any]:
    """The files and what the engine serves are what was trained, and it answers real prompts.

    Raises:
        Refused: it is not, or it does not; the reason has the numbers.
    """
    from environments.chat import to_chat
    from serving.verify import check_files, check_logprobs, read_probe, smoke
    from storage.queries import problems

    # The engine may hold good weights whose files, which the next start reads, are bad by now.
    check_files(home(), deployment)
    probe = read_probe(run_folder(turn) / "probe.json")
    prompts = [to_chat(one.messages) for one in problems(home(), ids=smoke_ids)]
    return {
        **check_logprobs(client, deployment.name, probe),
        "smoke": smoke(client, deployment.name, prompts),
    }

"""Promote: the serving gate loads and checks the candidate, and the routing file lets it answer."""

from typing import Any

import msgspec

from flywheel.errors import Refused
from flywheel.lineage import Deployment
from flywheel.progress import report
from tasks.gates import Verdict, verdict
from tasks.step import step
from tasks.turns import Turn, engine, home, note, run_folder


@step(minutes=15)
def promote_candidate(turn: Turn, candidate: dict[str, Any], evaluation: Verdict) -> Verdict:
    """Runs the promotion protocol; running it again after a kill goes on where it was."""
    from serving.promotion import promote
    from serving.registry import Registry
    from serving.verify import check_logprobs, read_probe
    from storage.committer import commit

    report("promoting", 0, 1)
    deployment = msgspec.convert(evaluation["challenger"], Deployment)
    client = engine()
    probe = read_probe(run_folder(turn) / "probe.json")
    try:
        promoted = promote(
            home(),
            deployment,
            engine=client,
            registry=Registry(home()),
            verify=lambda: check_logprobs(client, deployment.name, probe),
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

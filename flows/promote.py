"""The open turn's end: its candidate is promoted or refused, and the turn is closed."""

from typing import Any

from prefect import flow

from tasks.curate import curate_dataset
from tasks.evaluate import evaluate_candidate
from tasks.gates import passed
from tasks.ingest import ingest_inbox
from tasks.mine import mine_problems
from tasks.promote import promote_candidate
from tasks.report import conclude
from tasks.sample import sample_rollouts
from tasks.starting import deployable
from tasks.train import train_candidate
from tasks.turns import open_turn, serving


@flow(name="promote", persist_result=False)
def promote(project: str, by: str = "", reason: str = "") -> dict[str, Any]:
    """
    Args:
        by: the person who asks for it; "" = nobody, and a project that wants a person waits.

    Raises:
        Refused: a gate says no.
    """
    with serving(project):
        this = open_turn(project, ingest_inbox())
        deployable(this)
        problems = mine_problems(this)
        dataset = passed(curate_dataset(this, sample_rollouts(this, problems)))
        candidate = train_candidate(this, dataset)
        evaluation = passed(evaluate_candidate(this, problems, candidate))
        passed(promote_candidate(this, candidate, evaluation, by, reason))
        return conclude(this)

"""The open turn, up to the comparison of its candidate with the champion."""

from typing import Any

from prefect import flow

from tasks.curate import curate_dataset
from tasks.evaluate import evaluate_candidate
from tasks.gates import passed
from tasks.ingest import ingest_inbox
from tasks.mine import mine_problems
from tasks.sample import sample_rollouts
from tasks.starting import deployable
from tasks.train import train_candidate
from tasks.turns import open_turn, serving


@flow(name="evaluate", persist_result=False)
def evaluate(project: str) -> dict[str, Any]:
    """Raises: Refused where a gate says no."""
    with serving(project):
        this = open_turn(project, ingest_inbox())
        deployable(this)
        problems = mine_problems(this)
        dataset = passed(curate_dataset(this, sample_rollouts(this, problems)))
        return passed(evaluate_candidate(this, problems, train_candidate(this, dataset)))

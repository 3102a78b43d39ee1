"""The open turn, from its dataset to a trained candidate. What was done is not done again."""

from typing import Any

from prefect import flow

from tasks.curate import curate_dataset
from tasks.elsewhere import engine_there
from tasks.gates import passed
from tasks.ingest import ingest_inbox
from tasks.mine import mine_problems
from tasks.sample import sample_rollouts
from tasks.together import curate_datasets, train_candidates
from tasks.train import train_candidate
from tasks.turns import closed_if_refused, open_turn, serving


@flow(name="train", persist_result=False)
def train(project: str) -> dict[str, Any]:
    """
    Raises:
        Refused: by the data gate; the turn is then no longer open.
        MissingPart: the engine that it would be trained in is not installed.
    """
    engine_there(project)
    with serving(project):
        this = open_turn(project, ingest_inbox())
        with closed_if_refused(this):
            rollouts = sample_rollouts(this, mine_problems(this))
            return train_candidate(this, passed(curate_dataset(this, rollouts)))


@flow(name="train together", persist_result=False)
def train_together(projects: list[str]) -> list[dict[str, Any]]:
    """Several projects' runs on one base model and engine, which they share fairly."""
    engine_there(*projects)
    with serving(*projects):
        ingested = ingest_inbox()
        turns = [open_turn(project, ingested) for project in projects]
        return train_candidates(turns, curate_datasets(turns))

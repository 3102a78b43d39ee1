"""The open turn, up to its dataset."""

from typing import Any

from prefect import flow

from tasks.curate import curate_dataset
from tasks.gates import passed
from tasks.grade import grade_recorded
from tasks.ingest import ingest_inbox
from tasks.mine import mine_problems
from tasks.sample import sample_rollouts
from tasks.slots import first_try, in_its_slot, run_name
from tasks.turns import note, open_turn, serving


@flow(name="curate", flow_run_name=run_name, persist_result=False)
@in_its_slot()
def curate(project: str) -> dict[str, Any]:
    """Raises: Refused where the data gate says no."""
    with serving(project):
        this = open_turn(project, ingest_inbox(), fresh=first_try())
        note(this, "grade", grade_recorded(this))
        rollouts = sample_rollouts(this, mine_problems(this))
        return passed(curate_dataset(this, rollouts))

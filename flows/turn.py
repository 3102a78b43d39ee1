"""One whole turn: a project's traces become a better model, or a refusal with its reason."""

from typing import Any

from prefect import flow
from prefect.states import Completed

from flywheel.errors import Refused
from tasks.curate import curate_dataset
from tasks.elsewhere import engine_there
from tasks.evaluate import evaluate_candidate
from tasks.gates import passed
from tasks.grade import grade_recorded
from tasks.ingest import ingest_inbox
from tasks.mine import mine_problems
from tasks.promote import promote_candidate
from tasks.report import conclude
from tasks.sample import sample_rollouts
from tasks.slots import first_try, in_its_slot, run_name
from tasks.starting import deployable
from tasks.train import train_candidate
from tasks.turns import note, open_turn, serving


@flow(name="turn", flow_run_name=run_name, persist_result=False)
@in_its_slot(wait_s=4 * 3600, same_work=True)
def turn(project: str) -> Any:
    """Turns the wheel once for the project in the folder `project`.

    Raises:
        Busy: a turn of this project is under way.
        MissingPart: the engine that it would be trained in is not installed.
    """
    engine_there(project)
    with serving(project):
        this = open_turn(project, ingest_inbox(), fresh=first_try())
        try:
            deployable(this)
            note(this, "grade", grade_recorded(this))
            problems = mine_problems(this)
            rollouts = sample_rollouts(this, problems)
            dataset = passed(curate_dataset(this, rollouts))
            candidate = train_candidate(this, dataset)
            evaluation = passed(evaluate_candidate(this, problems, candidate))
            passed(promote_candidate(this, candidate, evaluation))
        except Refused as refusal:
            report = conclude(this, str(refusal))
            name = "Canary" if report["canary"] else "Waiting" if report["waiting"] else "Refused"
            return Completed(name=name, data=report)
        return Completed(name="Promoted", data=conclude(this))

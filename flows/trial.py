"""Any version of the registry is tried against the champion, and promoted where that was asked."""

from typing import Any

from prefect import flow
from prefect.states import Completed

from flywheel.errors import Refused
from tasks.gates import passed
from tasks.ingest import ingest_inbox
from tasks.slots import in_its_slot, run_name
from tasks.trial import Trial, evaluation_of, fetch_version, open_trial, promote_version
from tasks.trial_report import conclude_trial
from tasks.turns import serving


@flow(name="trial", flow_run_name=run_name, persist_result=False)
@in_its_slot(wait_s=4 * 3600)
def trial(
    project_folder: str, version: str, promote: bool, by: str, reason: str = "", ask: str = ""
) -> Any:
    """
    Args:
        promote: whether it shall serve if every gate lets it.
        by: who asks.
        ask: id of what was asked for in MLflow; an ask has one answer.

    Raises:
        UsageError: there is no such version.
        Busy: a turn or trial of the project is under way.
    """
    asked = Trial(
        folder=project_folder, version=version, promote=promote, by=by, reason=reason, ask=ask
    )
    this = challenger = None
    with serving(project_folder):
        ingest_inbox()
        try:
            challenger = fetch_version(asked)
            this, problems = open_trial(asked, challenger)
            evaluation = evaluation_of(asked, this, problems, challenger)
            if promote:
                passed(evaluation)
                passed(promote_version(this, challenger, evaluation, by, reason))
        except Refused as refusal:
            report = conclude_trial(asked, this, challenger, str(refusal))
            return Completed(name="Refused", data=report)
        report = conclude_trial(asked, this, challenger)
        return Completed(name="Promoted" if promote else "Evaluated", data=report)

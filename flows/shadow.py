"""A version gets copies of a share of the requests; nobody sees what it answers."""

from typing import Any

from prefect import flow

from tasks.canary import answering, probed
from tasks.rerouting import give_copies


@flow(name="shadow", persist_result=False)
def shadow(
    project_folder: str, version: str, share: float, by: str, reason: str = ""
) -> dict[str, Any]:
    """
    Raises:
        Refused: the serving gate says no.
        Busy: a promotion or rollback of the project runs.
    """
    with answering(project_folder):
        this, challenger, problems = probed(project_folder, version, by)
        return give_copies(this, challenger, problems, share, by, reason)

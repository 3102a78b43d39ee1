"""A version answers a share of the requests, or copies of them unseen, or neither any more."""

from typing import Any

from prefect import flow

from tasks.canary import answering, give_share, probed, standing_of, take_share
from tasks.rerouting import give_copies


@flow(name="release", persist_result=False)
def release(
    project_folder: str,
    version: str | None,
    share: float,
    by: str,
    reason: str = "",
    shadow: bool = False,
) -> dict[str, Any]:
    """
    Args:
        version: None = whichever runs, to end it.
        share: 0 = it ends.
        shadow: it is asked copies, and nobody sees its answers.

    Raises:
        Refused: the serving gate says no.
        Busy: a promotion or rollback of the project runs.
    """
    if not share:
        return take_share(project_folder, version, by, reason)
    with answering(project_folder):
        this, challenger, problems = probed(project_folder, version or "", by)
        if shadow:
            give_copies(this, challenger, problems, share, by, reason)
            return standing_of(this.project)
        return give_share(this, challenger, problems, share, by, reason)

"""A version answers a share of the requests, or no share any more."""

from typing import Any

from prefect import flow

from tasks.canary import answering, give_share, probed, take_share


@flow(name="release", persist_result=False)
def release(
    project_folder: str, version: str | None, share: float, by: str, reason: str = ""
) -> dict[str, Any]:
    """
    Args:
        version: None = whichever runs, to end it.
        share: 0 = it ends.

    Raises:
        UsageError: no share, told before anything starts.
        Refused: the serving gate says no.
        Busy: a promotion or rollback of the project runs.
    """
    if not share:
        return take_share(project_folder, version, by, reason)
    with answering(project_folder, share):
        this, challenger, problems = probed(project_folder, version or "", by)
        return give_share(this, challenger, problems, share, by, reason)

"""A version answers a share of the requests, or copies of them unseen, or neither any more."""

from typing import Any

from prefect import flow

from tasks.canary import answering, give_shadow, give_share, probed, take_share


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
        give = give_shadow if shadow else give_share
        return give(this, challenger, problems, share, by, reason)

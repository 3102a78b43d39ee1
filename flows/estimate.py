"""What a version would have earned on recent production traffic, before it gets any."""

from typing import Any

from prefect import flow

from tasks.estimate import estimated, open_estimate, replay_sample
from tasks.estimate_logged import weigh_logged
from tasks.estimate_report import conclude_estimate
from tasks.ingest import ingest_inbox
from tasks.turns import served_now


@flow(name="estimate", persist_result=False)
def estimate(
    project_folder: str, version: str, sample: int, by: str, since: int | None = None
) -> dict[str, Any]:
    """
    Args:
        sample: conversations that the version is asked again, at most.
        since: only traffic from then on, in nanoseconds; None = whatever is the latest.

    Raises:
        UsageError: there is no such version, or nothing to hold it against.
        Refused: its files are gone, or are no weights.
    """
    with served_now(project_folder):
        ingest_inbox()
        opened = open_estimate(project_folder, version, sample, since)
        turn, challenger = opened["turn"], opened["challenger"]
        rows = replay_sample(turn, challenger, opened["sample"].ids)
        logged = weigh_logged(turn, challenger)
        found = estimated(turn, challenger, opened["sample"], rows, logged)
        return conclude_estimate(turn, challenger, found, by)

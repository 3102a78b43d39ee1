"""What serves is made faster, and takes its place where it is not worse and cheaper."""

from typing import Any

from prefect import flow
from prefect.states import Completed

from flywheel.errors import Refused
from tasks.gates import passed
from tasks.ingest import ingest_inbox
from tasks.promote import promote_candidate
from tasks.turns import serving
from tasks.variant import made_variant, origin_of, servable
from tasks.variant_gate import variant_verdict
from tasks.variant_report import conclude_variant, opened


@flow(name="variant", persist_result=False)
def variant(
    project_folder: str, version: str | None, how: str, by: str, promote: bool = True
) -> Any:
    """
    Args:
        version: what is made faster; None = the champion.
        how: int8 or ngram.

    Raises:
        UsageError: there is no such version, or it is a variant.
        Refused: it has no weights here, or this engine cannot hold two models.
    """
    with serving(project_folder):
        ingest_inbox()
        servable(how)
        challenger = made_variant(project_folder, origin_of(project_folder, version), how)
        this, plain, problems = opened(project_folder, challenger, by)
        try:
            said = passed(variant_verdict(this, problems, plain, by))
            if promote:
                passed(promote_candidate(this, {}, said))
        except Refused as refusal:
            return Completed(name="Refused", data=conclude_variant(this, plain, str(refusal)))
        return Completed(
            name="Promoted" if promote else "Passed", data=conclude_variant(this, plain)
        )

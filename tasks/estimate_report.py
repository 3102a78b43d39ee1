"""An estimate's end: its plot, its place in the ledger, one object for scripts.

Enters what was estimated; leaves `estimate.json` and `estimate.png` beside the run, and a Decision
that names them as evidence. The decision bears no deployment and no run: it decides nothing of what
serves, and stands beside a version's own decisions, not in their place.
"""

from typing import Any

import msgspec
from prefect import task

from flywheel.ids import new_ulid
from flywheel.lineage import Decision
from tasks.estimate_verdict import OUTCOMES, Estimates
from tasks.step import worth_another_try
from tasks.tracking_estimate import plot
from tasks.turns import Turn, home, note, run_folder

GATE = "estimate"


@task(retries=2, retry_delay_seconds=1, retry_condition_fn=worth_another_try)
def conclude_estimate(
    turn: Turn, challenger: dict[str, Any], found: Estimates, by: str
) -> dict[str, Any]:
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.moments import moment
    from tasks.report import let_go

    folder = run_folder(turn)
    report: dict[str, Any] = {
        "project": turn.project,
        "run_id": turn.run_id,
        **msgspec.to_builtins(found),
        "plot": home().relative(folder / "estimate.png"),
    }
    plot(report).savefig(folder / "estimate.png", dpi=120)
    note(turn, GATE, report)
    decision = Decision(
        id=new_ulid(),
        project=turn.project,
        outcome=OUTCOMES[found.verdict],
        gate=GATE,
        reason=f"{found.candidate} against {found.champion}: {found.reason}",
        by=by,
        at=moment(home()),
        evidence={name: report[name] for name in ("candidate", "champion", "run_id", "verdict",
                                                  "reason", "replay", "logged", "plot")},
    )  # fmt: skip
    Inbox(home()).append([decision], name=f"decision-{turn.run_id}-{GATE}")
    commit(home())
    let_go(challenger)
    return report

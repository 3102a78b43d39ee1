"""The records of a project that the pages tell of, read once a ledger sequence, and its turns.

Enters a home and a project; leaves decisions, evaluations, runs, datasets and deployments in the
order they came, and the turns that they belong to. A turn is all that bears one run id.
"""

from flywheel.home import Home
from flywheel.lineage import Checkpoint, Dataset, Decision, Deployment, Evaluation, Mark, Run
from flywheel.records import Record


class Ledger(Record, frozen=True, kw_only=True):
    decisions: tuple[Decision, ...] = ()
    """By time."""
    evaluations: tuple[Evaluation, ...] = ()
    runs: tuple[Run, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    datasets: tuple[Dataset, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    marks: tuple[Mark, ...] = ()
    """Of what stands on something that has changed since; settled ones too."""


class Turn(Record, frozen=True, kw_only=True):
    """A turn, or a trial of one version that a person asked for."""

    number: int
    """From 1 by time, turns and trials each for themselves."""
    trial: bool
    run_id: str
    began: int
    """When its first decision was made."""
    at: int
    """When its last one was."""
    last: Decision
    run: Run | None = None
    """None = it never trained."""
    dataset: Dataset | None = None
    evaluation: Evaluation | None = None
    """Its own, or the one that it decided by."""

    @property
    def label(self) -> str:
        return f"trial {self.number}" if self.trial else str(self.number)

    @property
    def name(self) -> str:
        """What a person calls it by, and what it made."""
        made = self.evaluation.candidate if self.evaluation else None
        kind = "trial" if self.trial else "turn"
        return f"{kind} {self.number}" + (f" · {made}" if made else "")


TURN = "flywheel turn"
"""Who decides in a turn; whoever asked decides in a trial."""
ENDS = ("promoted", "refused", "waiting", "canary", "abandoned")
"""Outcomes that end a turn; `passed` alone is one under way, or one that was stopped."""

KINDS = ("decision", "evaluation", "run", "checkpoint", "dataset", "deployment", "mark")


def ledger(home: Home, project: str) -> Ledger:
    from storage.queries import records

    found = {kind: tuple(records(home, kind, project=project)) for kind in KINDS}
    return Ledger(
        decisions=tuple(sorted(found["decision"], key=lambda one: (one.at, one.id))),
        evaluations=found["evaluation"],
        runs=found["run"],
        checkpoints=found["checkpoint"],
        datasets=found["dataset"],
        deployments=found["deployment"],
        marks=found["mark"],
    )


def turns(known: Ledger) -> list[Turn]:
    """By time; what was decided of no run (a rollback) is in none."""
    by_run: dict[str, list[Decision]] = {}
    for one in known.decisions:
        if one.run_id is not None:
            by_run.setdefault(one.run_id, []).append(one)
    runs = {one.id: one for one in known.runs}
    of_run = {one.run_id: one for one in known.evaluations}
    by_id = {one.id: one for one in known.evaluations}
    datasets = {one.id: one for one in known.datasets}
    made_by = {parent: one for one in known.datasets for parent in one.parents}
    found: list[Turn] = []
    counted = {True: 0, False: 0}
    for run_id, said in by_run.items():
        run = runs.get(run_id)
        trial = run is None and said[0].by != TURN
        counted[trial] += 1
        decided_by = next((one.evaluation_id for one in said if one.evaluation_id), None)
        found.append(
            Turn(
                number=counted[trial],
                trial=trial,
                run_id=run_id,
                began=said[0].at,
                at=said[-1].at,
                last=said[-1],
                run=run,
                dataset=datasets.get(run.dataset_id or "") if run else made_by.get(run_id),
                evaluation=of_run.get(run_id) or by_id.get(decided_by or ""),
            )
        )
    return found


def outcome_of(turn: Turn) -> str:
    """In a word: promoted, refused, waiting …; "unfinished" where no gate ended it."""
    return turn.last.outcome if turn.last.outcome in ENDS else "unfinished"


def took_over_by(decision: Decision) -> str:
    """How its deployment came to answer, and by whom: promoted, or another was rolled back."""
    if decision.outcome != "rolled_back":
        return f"{decision.outcome.replace('_', ' ')} by {decision.by}"
    of = f" of {decision.replaced}" if decision.replaced else ""
    return f"took over by rollback{of}, by {decision.by}"


def of_canary(decision: Decision) -> bool:
    """Of the rollback of a version that answered a share only: its champion answered all along."""
    return decision.outcome == "rolled_back" and decision.gate == "canary"


def took_over(known: Ledger) -> list[Decision]:
    """Decisions since which another deployment answers, by time."""
    return [
        one
        for one in known.decisions
        if one.outcome in ("promoted", "rolled_back", "reconciled")
        and one.deployment
        and not of_canary(one)
    ]

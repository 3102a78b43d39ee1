"""The records of a project that the pages tell of, read once a ledger sequence, and its turns.

Enters a home and a project; leaves decisions, evaluations, runs, datasets and deployments in the
order they came, and the turns that they belong to. A turn is all that bears one run id.
"""

from flywheel.home import Home
from flywheel.lineage import Checkpoint, Dataset, Decision, Deployment, Evaluation, Run
from flywheel.records import Record


class Ledger(Record, frozen=True, kw_only=True):
    decisions: tuple[Decision, ...] = ()
    """By time."""
    evaluations: tuple[Evaluation, ...] = ()
    runs: tuple[Run, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    datasets: tuple[Dataset, ...] = ()
    deployments: tuple[Deployment, ...] = ()


class Turn(Record, frozen=True, kw_only=True):
    number: int
    """From 1, by time."""
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

    @property
    def name(self) -> str:
        """What a person calls it by: its number and what came of it."""
        made = self.evaluation.candidate if self.evaluation else None
        return f"turn {self.number}" + (f" · {made}" if made else "")


ENDS = ("promoted", "refused", "waiting", "canary", "abandoned")
"""Outcomes that end a turn; `passed` alone is one under way, or one that was stopped."""


def ledger(home: Home, project: str) -> Ledger:
    from storage.queries import records

    found = {
        kind: tuple(records(home, kind, project=project))
        for kind in ("decision", "evaluation", "run", "checkpoint", "dataset", "deployment")
    }
    return Ledger(
        decisions=tuple(sorted(found["decision"], key=lambda one: (one.at, one.id))),
        evaluations=found["evaluation"],
        runs=found["run"],
        checkpoints=found["checkpoint"],
        datasets=found["dataset"],
        deployments=found["deployment"],
    )


def turns(known: Ledger) -> list[Turn]:
    """By time; what was decided of no run (a rollback) is in none."""
    by_run: dict[str, list[Decision]] = {}
    for one in known.decisions:
        if one.run_id is not None:
            by_run.setdefault(one.run_id, []).append(one)
    runs = {one.id: one for one in known.runs}
    evaluations = {one.run_id: one for one in known.evaluations}
    datasets = {one.id: one for one in known.datasets}
    made_by = {parent: one for one in known.datasets for parent in one.parents}
    found = []
    for number, (run_id, said) in enumerate(by_run.items(), start=1):
        run = runs.get(run_id)
        dataset = datasets.get(run.dataset_id or "") if run else made_by.get(run_id)
        found.append(
            Turn(
                number=number,
                run_id=run_id,
                began=said[0].at,
                at=said[-1].at,
                last=said[-1],
                run=run,
                dataset=dataset,
                evaluation=evaluations.get(run_id),
            )
        )
    return found


def outcome_of(turn: Turn) -> str:
    """In a word: promoted, refused, waiting …; "unfinished" where no gate ended it."""
    return turn.last.outcome if turn.last.outcome in ENDS else "unfinished"


def took_over(known: Ledger) -> list[Decision]:
    """Decisions since which another deployment answers, by time."""
    return [
        one
        for one in known.decisions
        if one.outcome in ("promoted", "rolled_back", "reconciled") and one.deployment
    ]


def names_of_runs(found: list[Turn]) -> dict[str, str]:
    """Run id -> what a person calls the turn by."""
    return {one.run_id: one.name for one in found}

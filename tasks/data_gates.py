"""A dataset before its gates: rows, window, balance, drift, shrinking, leaks. Each is a Decision.

A turn's dataset and its narrow columns enter; leave one verdict and, in the ledger, one Decision
for each gate that looked, the whole's last. A gate that warns lets the turn go on and says so.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flywheel.curate_section import PREFERENCES
from flywheel.lineage import Dataset, Decision
from flywheel.project import Project
from tasks.gates import Verdict, decision, record, verdict
from tasks.turns import Turn, home, project_of

if TYPE_CHECKING:
    import polars as pl

    from storage.gates.expected import Wanted
    from storage.gates.report import GateReport, Looked
    from storage.leakage import Leak

BOTH = (*PREFERENCES, "recorded")
"""Algorithms that learn from bad answers too."""


def judge_dataset(
    turn: Turn,
    dataset: Dataset,
    frame: "pl.DataFrame",
    *,
    leaks: "Sequence[Leak]" = (),
    slices: Sequence[str] = (),
    answered: bool = True,
    **found: Any,
) -> Verdict:
    """Puts every verdict into the ledger; the one that is returned is the whole's.

    Args:
        slices: those that there are problems of.
        answered: False = the rows are problems that are yet to be answered.
        found: what the verdict is to say beside.
    """
    from storage.gate import data_gate
    from storage.gates.earlier import last_accepted

    wanted = _wanted(project_of(turn), slices, answered)
    earlier = last_accepted(home(), dataset)
    gate = data_gate(frame, home().path(dataset.path), wanted, earlier)
    told = [f"trace {leak.trace_id} leaks {leak.problem_id}" for leak in leaks]
    reasons = [*gate.failures, *_taken(dataset, wanted.min_rows), *told]
    said = verdict(
        "data",
        gate.passed and not leaks,
        "; ".join(reasons) or f"{dataset.rows} {'rows' if answered else 'problems'}",
        dataset=dataset.id,
        rows=dataset.rows,
        warnings=list(gate.warnings),
        report=home().relative(gate.report),
        **found,
    )
    against = {"dataset": dataset.id, "report": said["report"]}
    if earlier:
        against["earlier"] = earlier.dataset
    each = [_decision(turn, one, gate, against) for one in gate.gates if one.gate != "data"]
    leaked = verdict("leakage", not leaks, "; ".join(told) or "no row touches a held-out problem")
    each.append(decision(turn, leaked, evidence=against))
    record(turn, said, beside=[one for one in each if one], evidence=against)
    return said


def _wanted(project: Project, slices: Sequence[str], answered: bool) -> "Wanted":
    from storage.gates.expected import Wanted

    return Wanted(
        min_rows=project.curate.min_rows,
        max_tokens=project.serving.context,
        section=project.data_gate,
        answered=answered,
        both=answered and project.train.algorithm in BOTH,
        slices=tuple(slices),
    )


def _taken(dataset: Dataset, wanted: int) -> list[str]:
    """Of a dataset with too few rows, which rule took most of those that it might have had."""
    most = max(dataset.rules, key=lambda one: one.rows_in - one.rows_out, default=None)
    if dataset.rows >= wanted or most is None or most.rows_in == most.rows_out:
        return []
    gone = most.rows_in - most.rows_out
    return [
        f"most went by the rule {most.rule}, {gone} of {most.rows_in} rows: "
        f"`flywheel curate {dataset.project} --preview` shows which"
    ]


def _decision(
    turn: Turn, looked: "Looked", gate: "GateReport", against: dict[str, str]
) -> Decision | None:
    """None = it looked at nothing."""
    if looked.passed is None:
        return None
    met = "; ".join(f"{one.column} {one.found}".strip() for one in looked.checks)
    said = verdict(looked.gate, looked.passed, "; ".join(looked.failures) or f"met: {met}")
    warned = not looked.passed and looked.strictness == "warn"
    measured = {one.column: float(one.found) for one in looked.checks if one.found}
    evidence = {**against, "measured": measured} if measured else against
    return decision(turn, said, outcome="warned" if warned else None, evidence=evidence)

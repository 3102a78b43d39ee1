"""Curate: graded rollouts become rows; rows pass the rules, the leakage check and the data gate."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.records import Problem
from flywheel.rows import TrainingRow
from tasks.candidates import candidates
from tasks.data_gates import judge_dataset
from tasks.gates import Verdict
from tasks.known import known, rehearsed
from tasks.rl_problems import held_out_of, is_online, posed, rows_of, store
from tasks.step import step
from tasks.turns import Turn, environment_of, home, note, project_of

if TYPE_CHECKING:
    from storage.curate import Curated, RuleSpec
    from storage.pool import Pool
    from storage.rules.rule import Known


@step(minutes=60)
def curate_dataset(turn: Turn, rollouts: dict[str, Any]) -> Verdict:
    """Writes the turn's dataset; the verdict has its id, rows and the counts of each rule.

    Of an algorithm that samples while it trains the dataset are its problems, and the only rule is
    that of leakage.
    """
    from storage.datasets import write_dataset
    from storage.leakage import leakage_check
    from storage.narrow import narrow

    project, beside = project_of(turn), known(turn)
    heldout, rules = heldout_of(turn), rules_of(turn)
    made = selected(turn, rows_to_train(turn, rollouts, beside), beside)
    leaks = leakage_check(made.rows, heldout, project.curate.near_duplicate)
    earlier = sorted({row.rehearsed for row in made.rows if row.rehearsed})
    parents = (turn.run_id, *earlier)
    dataset = write_dataset(home(), turn.project, made, parents=parents, rules=rules)
    said = judge_dataset(
        turn,
        dataset,
        narrow(made.rows),
        leaks=leaks,
        slices=sorted({one.slice for one in heldout}),
        answered=not is_online(project),
        rules=[msgspec.to_builtins(count) for count in made.counts],
    )
    keep(
        turn,
        msgspec.structs.replace(dataset, gate_passed=said["passed"], gate_report=said["report"]),
    )
    note(turn, "dataset", said)
    return said


def selected(
    turn: Turn, rows: Iterable[TrainingRow], beside: "Known", pool: "Pool | None" = None
) -> "Curated":
    """What the leakage check and the project's rules leave of `rows`; nothing is written."""
    from storage.curate import curate

    alike = project_of(turn).curate.near_duplicate
    return curate(rows, rules_of(turn), heldout_of(turn), alike, beside, pool)


def heldout_of(turn: Turn) -> "Sequence[Problem]":
    """Every held-out problem that the turn's rows must not touch."""
    from storage.queries import problems

    project = project_of(turn)
    if is_online(project):
        return held_out_of(project)
    return problems(home(), environment_of(project).name, split="heldout")


def rules_of(turn: Turn) -> "tuple[RuleSpec, ...]":
    from storage.curate import rule_specs

    project = project_of(turn)
    return () if is_online(project) else rule_specs(project.curate)


def rows_to_train(turn: Turn, rollouts: dict[str, Any], beside: "Known") -> list[TrainingRow]:
    if not is_online(project_of(turn)):
        again = [row for batch in rehearsed(turn, beside) for row in batch]
        return candidates(turn) + again
    problems = posed(turn, rollouts["problems"])
    store(turn, problems)
    return rows_of(problems)


def keep(turn: Turn, dataset: Any) -> None:
    from storage.committer import commit
    from storage.inbox import Inbox

    Inbox(home()).append([dataset], name=f"dataset-{turn.run_id}-{dataset.id}")
    commit(home())

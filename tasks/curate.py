"""Curate: graded rollouts become rows; rows pass the rules, the leakage check and the data gate."""

from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.rows import TrainingRow
from tasks.candidates import candidates
from tasks.data_gates import judge_dataset
from tasks.gates import Verdict
from tasks.known import known, rehearsed
from tasks.rl_problems import held_out_of, is_online, posed, rows_of, store
from tasks.step import step
from tasks.turns import Turn, environment_of, home, note, project_of

if TYPE_CHECKING:
    from storage.rules.rule import Known


@step(minutes=60)
def curate_dataset(turn: Turn, rollouts: dict[str, Any]) -> Verdict:
    """Writes the turn's dataset; the verdict has its id, rows and the counts of each rule.

    Of an algorithm that samples while it trains the dataset are its problems, and the only rule is
    that of leakage.
    """
    from storage.curate import curate, rule_specs
    from storage.datasets import write_dataset
    from storage.leakage import leakage_check
    from storage.narrow import narrow
    from storage.queries import problems

    project = project_of(turn)
    online, beside = is_online(project), known(turn)
    rows = rows_to_train(turn, rollouts, beside)
    heldout = (
        held_out_of(project)
        if online
        else problems(home(), environment_of(project).name, split="heldout")
    )
    rules = () if online else rule_specs(project.curate)
    alike = project.curate.near_duplicate
    made = curate(rows, rules, heldout, alike, beside)
    leaks = leakage_check(made.rows, heldout, alike)
    earlier = sorted({row.rehearsed for row in made.rows if row.rehearsed})
    parents = (turn.run_id, *earlier)
    dataset = write_dataset(home(), turn.project, made, parents=parents, rules=rules)
    said = judge_dataset(
        turn,
        dataset,
        narrow(made.rows),
        leaks=leaks,
        slices=sorted({one.slice for one in heldout}),
        answered=not online,
        rules=[msgspec.to_builtins(count) for count in made.counts],
    )
    keep(
        turn,
        msgspec.structs.replace(dataset, gate_passed=said["passed"], gate_report=said["report"]),
    )
    note(turn, "dataset", said)
    return said


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

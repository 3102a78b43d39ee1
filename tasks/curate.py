"""Curate: graded rollouts become rows; rows pass the rules, the leakage check and the data gate."""

import random
from typing import Any

import msgspec

from flywheel.rows import TrainingRow
from tasks.gates import Verdict, record, verdict
from tasks.step import step
from tasks.turns import Turn, environment_of, home, note, project_of


@step(minutes=60)
def curate_dataset(turn: Turn, rollouts: dict[str, Any]) -> Verdict:
    """Writes the turn's dataset; the verdict has its id, rows and the counts of each rule."""
    from storage.curate import curate, rule_specs
    from storage.datasets import write_dataset
    from storage.gate import data_gate
    from storage.leakage import leakage_check
    from storage.queries import problems

    project = project_of(turn)
    heldout = problems(home(), environment_of(project).name, split="heldout")
    rules, alike = rule_specs(project.curate), project.curate.near_duplicate
    made = curate(candidates(turn), rules, heldout, alike)
    leaks = leakage_check(made.rows, heldout, alike)
    dataset = write_dataset(home(), turn.project, made, parents=(turn.run_id,), rules=rules)
    gate = data_gate(
        made.rows,
        home().path(dataset.path),
        min_rows=project.curate.min_rows,
        max_tokens=project.serving.context,
    )
    told = [f"trace {leak.trace_id} leaks {leak.problem_id}" for leak in leaks]
    reasons = [*gate.failures, *told]
    said = verdict(
        "data",
        gate.passed and not leaks,
        "; ".join(reasons) or f"{dataset.rows} rows",
        dataset=dataset.id,
        rows=dataset.rows,
        rules=[msgspec.to_builtins(count) for count in made.counts],
        report=home().relative(gate.report),
    )
    keep(
        turn,
        msgspec.structs.replace(dataset, gate_passed=said["passed"], gate_report=said["report"]),
    )
    record(turn, said)
    note(turn, "dataset", said)
    return said


def candidates(turn: Turn) -> list[TrainingRow]:
    """Every sampled answer of the turn, as a row, with what it was graded."""
    from environments.grading import score
    from flywheel.records import model_spans
    from storage.queries import grades, problems, traces

    environment = environment_of(project_of(turn))
    rollouts = [
        trace
        for batch in traces(home(), project=turn.project, origin=("rollout",), run_id=turn.run_id)
        for trace in batch
    ]
    asked = problems(home(), ids=sorted({one.problem_id for one in rollouts if one.problem_id}))
    known = {one.id: one for one in asked}
    given: dict[str, list[Any]] = {trace.id: [] for trace in rollouts}
    for grade in grades(home(), trace_ids=list(given)):
        given[grade.trace_id].append(grade)
    rows = []
    for trace in rollouts:
        problem, calls = known[trace.problem_id or ""], model_spans(trace)
        if not calls or not calls[-1].call or not calls[-1].call.choices:
            continue
        call, choice = calls[-1].call, calls[-1].call.choices[0]
        confirmed = [one.confirmed_by for one in given[trace.id] if one.weight and one.confirmed_by]
        rows.append(
            TrainingRow(
                trace_id=trace.id,
                span_id=calls[-1].id,
                messages=call.input,
                completion=choice.message,
                problem_id=problem.id,
                slice=problem.slice,
                conversation=problem.conversation,
                user=problem.user,
                text=problem.text or environment.text(problem.messages),
                tools=call.tools or (),
                tokens=choice.tokens,
                finish_reason=choice.finish_reason,
                reward=score(given[trace.id]),
                confirmed_by=confirmed[0] if confirmed else None,
                origin=trace.origin,
                fidelity=trace.fidelity,
            )
        )
    seed = project_of(turn).curate.shuffle_rewards
    return rows if seed is None else shuffled(rows, seed)


def shuffled(rows: list[TrainingRow], seed: int) -> list[TrainingRow]:
    """The control: rewards dealt out anew among the answers. Training on them must be refused."""
    rows = sorted(rows, key=lambda row: (row.id, row.trace_id))
    rewards = [(row.reward, row.confirmed_by) for row in rows]
    random.Random(seed).shuffle(rewards)
    return [
        msgspec.structs.replace(row, reward=reward, confirmed_by=confirmed)
        for row, (reward, confirmed) in zip(rows, rewards, strict=True)
    ]


def keep(turn: Turn, dataset: Any) -> None:
    from storage.committer import commit
    from storage.inbox import Inbox

    Inbox(home()).append([dataset], name=f"dataset-{turn.run_id}-{dataset.id}")
    commit(home())

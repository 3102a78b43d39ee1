"""Candidates: answers that could be trained on, each a row with what it was graded.

They come from the turn's own rollouts and, where the project wants it, from what was recorded in
production or imported. Nothing is judged here: rules, leakage check and data gate do that.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from flywheel.records import Grade, Problem, Trace, main_spans
from flywheel.rows import TrainingRow
from tasks.grade import RECORDED
from tasks.turns import Turn, environment_of, home, project_of


def candidates(turn: Turn) -> list[TrainingRow]:
    """The turn's rows, from the sources that the project names."""
    from storage.queries import grades, problems

    section = project_of(turn).curate
    rows: list[TrainingRow] = []
    for source in section.sources:
        for batch in SOURCES[source](turn):
            given: dict[str, list[Grade]] = {trace.id: [] for trace in batch}
            for grade in grades(home(), trace_ids=list(given)):
                given[grade.trace_id].append(grade)
            asked = {one.problem_id for grades_ in given.values() for one in grades_}
            known = {one.id: one for one in problems(home(), ids=sorted(filter(None, asked)))}
            rows += rows_of(turn, batch, given, known)
    return rows if section.shuffle_rewards is None else shuffled(rows, section.shuffle_rewards)


def rollouts(turn: Turn) -> Iterator[list[Trace]]:
    from storage.queries import traces

    return traces(home(), project=turn.project, origin=("rollout",), run_id=turn.run_id)


def recorded(turn: Turn) -> Iterator[list[Trace]]:
    from storage.queries import traces

    return traces(home(), project=turn.project, origin=RECORDED, snapshot=turn.sequence)


SOURCES = {"rollouts": rollouts, "recorded": recorded}


def rows_of(
    turn: Turn,
    traces: Sequence[Trace],
    given: dict[str, list[Grade]],
    known: dict[str, Problem],
) -> Iterator[TrainingRow]:
    """A row for each trace that ends in an answer: its last one, with its whole prompt."""
    from environments.grading import score

    environment = environment_of(project_of(turn))
    for trace in traces:
        calls, graded = main_spans(trace), given[trace.id]
        call = calls[-1].call if calls else None
        if call is None or not call.choices or "failed_by" in trace.attributes:
            continue
        choice = call.choices[0]
        problem = known.get(next((one.problem_id or "" for one in graded), ""))
        confirmed = [one.confirmed_by for one in graded if one.weight and one.confirmed_by]
        yield TrainingRow(
            trace_id=trace.id,
            span_id=calls[-1].id,
            messages=call.input,
            completion=choice.message,
            problem_id=problem.id if problem else None,
            slice=problem.slice if problem else "all",
            conversation=trace.conversation or (problem.conversation if problem else None),
            user=trace.user or (problem.user if problem else None),
            text=environment.text(call.input),
            tools=call.tools or (),
            tokens=choice.tokens,
            finish_reason=choice.finish_reason,
            reward=score(graded),
            confirmed_by=confirmed[0] if confirmed else None,
            origin=trace.origin,
            fidelity=trace.fidelity,
        )


def shuffled(rows: list[TrainingRow], seed: int) -> list[TrainingRow]:
    """The control: rewards dealt out anew among the answers. Training on them must be refused."""
    rows = sorted(rows, key=lambda row: (row.id, row.trace_id))
    rewards: list[Any] = [(row.reward, row.confirmed_by) for row in rows]
    random.Random(seed).shuffle(rewards)
    return [
        msgspec.structs.replace(row, reward=reward, confirmed_by=confirmed)
        for row, (reward, confirmed) in zip(rows, rewards, strict=True)
    ]

"""Candidates: answers that could be trained on, each a row with what it was graded.

They come from the turn's own rollouts and, where the project wants it, from what was recorded in
production or imported. Nothing is judged here: rules, leakage check and data gate do that.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from flywheel.ahead import ahead
from flywheel.curate_section import PREFERENCES
from flywheel.records import Grade, Problem, Trace
from flywheel.rows import Label, TrainingRow
from tasks.answered import SOURCES, Answered, graded, row_of
from tasks.preferences import preferred
from tasks.turns import Turn, project_of


def candidates(turn: Turn) -> Iterator[TrainingRow]:
    """The turn's rows, from the sources that the project names, one at a time."""
    project = project_of(turn)
    section = project.curate
    found = (batch for source in section.sources for batch in graded(turn, SOURCES[source](turn)))
    batches = ahead(found)
    if project.train.algorithm in PREFERENCES:
        rows: Iterator[TrainingRow] = iter(preferred(turn, batches))
    else:
        rows = (row for batch in batches for one in batch if (row := row_of(turn, one)))
    return (
        rows if section.shuffle_rewards is None else iter(shuffled(rows, section.shuffle_rewards))
    )


def rows_of(
    turn: Turn,
    traces: Sequence[Trace],
    given: dict[str, list[Grade]],
    known: dict[str, Problem],
) -> Iterator[TrainingRow]:
    """A row for each trace that ends in an answer: its last one, with its whole prompt."""
    for trace in traces:
        graded = given[trace.id]
        problem = known.get(next((one.problem_id or "" for one in graded), ""))
        row = row_of(turn, Answered(trace, graded, problem))
        if row is not None:
            yield row


def shuffled(rows: Iterable[TrainingRow], seed: int) -> list[TrainingRow]:
    """The control: rewards and labels dealt out anew among the answers, those of a pair among the
    two. Training on them must be refused."""
    rows = sorted(rows, key=lambda row: (row.id, row.trace_id))
    single = [row for row in rows if row.pair_id is None]
    dealt: list[Any] = [(row.reward, row.confirmed_by, row.label) for row in single]
    random.Random(seed).shuffle(dealt)
    return [
        *(
            msgspec.structs.replace(row, reward=reward, confirmed_by=confirmed, label=label)
            for row, (reward, confirmed, label) in zip(single, dealt, strict=True)
        ),
        *(_turned(row, seed) for row in rows if row.pair_id is not None),
    ]


def _turned(row: TrainingRow, seed: int) -> TrainingRow:
    if random.Random(f"{seed} {row.pair_id}").random() < 0.5:
        return row
    label: Label = "rejected" if row.label == "chosen" else "chosen"
    return msgspec.structs.replace(row, label=label)

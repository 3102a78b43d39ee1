"""Candidates: answers that could be trained on, each a row with what it was graded.

They come from the turn's own rollouts and, where the project wants it, from what was recorded in
production or imported. Nothing is judged here: rules, leakage check and data gate do that.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    seed = project_of(turn).curate.shuffle_rewards
    return _rows(turn) if seed is None else shuffled(lambda: _rows(turn), seed)


def _rows(turn: Turn) -> Iterator[TrainingRow]:
    project = project_of(turn)
    sources = [SOURCES[source] for source in project.curate.sources]
    batches = ahead(batch for source in sources for batch in graded(turn, source(turn)))
    if project.train.algorithm in PREFERENCES:
        return iter(preferred(turn, batches))
    return (row for batch in batches for one in batch if (row := row_of(turn, one)))


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


def shuffled(rows: Callable[[], Iterable[TrainingRow]], seed: int) -> Iterator[TrainingRow]:
    """The control: rewards and labels dealt out anew among the answers, those of a pair among the
    two. Training on them must be refused.

    Args:
        rows: read twice, so that only what is dealt is held.
    """
    single = [_dealt(row) for row in rows() if row.pair_id is None]
    single.sort(key=lambda one: one[:2])
    dealt = [one[2:] for one in single]
    random.Random(seed).shuffle(dealt)
    given: dict[tuple[str, str], list[Any]] = {}
    for (of, trace_id, *_), one in zip(single, dealt, strict=True):
        given.setdefault((of, trace_id), []).append(one)
    for row in rows():
        if row.pair_id is not None:
            yield _turned(row, seed)
            continue
        reward, confirmed, label = given[row.id, row.trace_id].pop(0)
        yield msgspec.structs.replace(row, reward=reward, confirmed_by=confirmed, label=label)


def _dealt(row: TrainingRow) -> tuple[str, str, float | None, str | None, Label | None]:
    return row.id, row.trace_id, row.reward, row.confirmed_by, row.label


def _turned(row: TrainingRow, seed: int) -> TrainingRow:
    if random.Random(f"{seed} {row.pair_id}").random() < 0.5:
        return row
    label: Label = "rejected" if row.label == "chosen" else "chosen"
    return msgspec.structs.replace(row, label=label)

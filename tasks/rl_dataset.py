"""What a run that sampled was trained on: the rollouts of every step, as a dataset.

Enter a turn whose training ended; leaves a dataset of one row a trained rollout, whose parent are
the problems. So the chain from a deployment leads to the very answers that it learnt from.
"""

from collections import Counter
from typing import TYPE_CHECKING

from flywheel.lineage import Dataset, RuleCount
from flywheel.records import Grade, Trace
from flywheel.rows import TrainingRow
from tasks.candidates import rows_of
from tasks.rl_buffer import Buffer, Buffered
from tasks.turns import Turn, home, project_of, run_folder

if TYPE_CHECKING:
    from storage.curate import Curated


def write_trained(turn: Turn, problems: str) -> Dataset:
    """
    Args:
        problems: id of the dataset that the run sampled from.
    """
    from storage.committer import commit
    from storage.datasets import write_dataset
    from storage.inbox import Inbox

    commit(home())
    made = trained(turn)
    dataset = write_dataset(home(), turn.project, made, parents=(problems,), rules=())
    Inbox(home()).append([dataset], name=f"trained-{turn.run_id}-{dataset.id}")
    commit(home())
    return dataset


def trained(turn: Turn) -> "Curated":
    from storage.curate import gathered
    from storage.queries import traces

    buffer = Buffer(run_folder(turn))
    groups, steps = buffer.all(), buffer.assigned().values()
    taken = {visit for several in steps for visit in several}
    wanted = [one.trace_id for group in groups if group.visit in taken for one in group.rollouts]
    rows = [row for batch in traces(home(), ids=wanted) for row in rows_in(turn, batch)]
    ended = sum(len(group.rollouts) for group in groups)
    count = RuleCount(rule="trained", rows_in=ended, rows_out=len(rows), note=left_out(groups))
    return gathered(rows, count)


def rows_in(turn: Turn, batch: list[Trace]) -> list[TrainingRow]:
    from storage.judgements import grades
    from storage.queries import problems

    given: dict[str, list[Grade]] = {trace.id: [] for trace in batch}
    for grade in grades(home(), trace_ids=list(given), labels=project_of(turn).labels):
        given[grade.trace_id].append(grade)
    known = problems(home(), ids=sorted({str(trace.problem_id) for trace in batch}))
    return list(rows_of(turn, batch, given, {one.id: one for one in known}))


def left_out(groups: list[Buffered]) -> str:
    """Groups that no step trained, by reason."""
    counts = Counter(group.refused for group in groups if group.refused)
    return "; ".join(f"{count} groups: {why}" for why, count in counts.most_common(8))

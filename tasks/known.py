"""What the turn's curation rules may know beside the rows, and the rows that it rehearses.

Enter a turn; leave `Known` as of its snapshot, and batches of rows of the project's earlier
accepted datasets where the rule `rehearsal` is named, each marked with the dataset it comes from.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from flywheel.records import Grade
from flywheel.row_files import read_batches
from flywheel.rows import TrainingRow
from tasks.answered import not_to_learn_from
from tasks.recipes import product_of
from tasks.turns import Turn, environment_of, home, project_of

if TYPE_CHECKING:
    from storage.rules.rule import Known


def known(turn: Turn) -> "Known":
    from storage.known import known_of

    project = project_of(turn)
    return known_of(
        home(),
        project=turn.project,
        traffic=project.traffic,
        environment=environment_of(project).name,
        champion=turn.start,
        sequence=turn.sequence,
        rules=[rule.name for rule in project.curate.rules],
        product=product_of(project),
        run_id=turn.run_id,
        until=turn.graded_until,
    )


def rehearsed(turn: Turn, known: "Known") -> Iterator[list[TrainingRow]]:
    """Rows of the latest accepted datasets, of as many as the rule says; those whose senders took
    their consent back, that must be gone by now, or that were graded otherwise since, are left out.
    What of them stays is the rule's to say."""
    from storage.datasets import verified
    from storage.rules.rehearsal import Rehearsal

    project = project_of(turn)
    named = [rule for rule in project.curate.rules if rule.name == "rehearsal"]
    if not named:
        return
    labelled = product_of(project) == "preferences"
    latest = Rehearsal.model_validate(named[0].model_extra or {}).datasets
    for dataset in known.earlier[:latest]:
        verified(home(), dataset)
        for batch in read_batches(home().datasets / turn.project / dataset / "rows.parquet"):
            asked = [row for row in batch if (row.label is not None) == labelled]
            asked = as_graded(turn, asked)
            gone = not_to_learn_from(turn, (row.trace_id for row in asked))
            yield [replace(row, rehearsed=dataset) for row in asked if row.trace_id not in gone]


def as_graded(turn: Turn, rows: list[TrainingRow]) -> list[TrainingRow]:
    """Those whose trace still has the reward that they have: what was found wrong meanwhile must
    not come back. Rewards of single steps are not looked at."""
    from environments.grading import score
    from storage.judgements import grades

    given: dict[str, list[Grade]] = {}
    project = project_of(turn)
    steps = project.train.algorithm == "process_reward"
    ids = {row.trace_id for row in rows if row.reward is not None and not steps}
    found = (
        grades(home(), trace_ids=ids, until=turn.graded_until, labels=project.labels) if ids else ()
    )
    for grade in found:
        given.setdefault(grade.trace_id, []).append(grade)
    now = {trace: score(several) for trace, several in given.items()}
    # What has no reward any more waits for a word, or was taken back.
    return [row for row in rows if now.get(row.trace_id, row.reward) == row.reward]

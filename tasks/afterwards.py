"""Afterwards: rollouts that datasets were made of are graded anew, where what is true of their
problems is another now, or the grader is.

A turn to come enters; leaves grades in the store, and the problems' new truth. Invariant: only what
it touches is graded: rollouts of problems whose answer changed, or, by another grader, those of
datasets that count.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flywheel.lineage import Dataset
from flywheel.progress import report
from tasks.grade import keep_new
from tasks.judges import judge_of
from tasks.looks import grader_of, last_look, looked
from tasks.turns import Turn, environment_of, home, project_of

if TYPE_CHECKING:
    from environments.grading import Item

MADE = "made"
"""Name of this look."""
BATCH = 2000


def grade_afterwards(turn: Turn, live: Sequence[Dataset]) -> int:
    """Returns: rollouts that were graded again."""
    from storage.changed import spoken_of

    project = project_of(turn)
    environment, judge = environment_of(project), judge_of(project, home())
    grader, last = grader_of(project, environment, judge), last_look(turn.project, MADE)
    ids: list[str] = []
    if last is not None and last.grader != grader:
        ids = _rollouts(live)
    elif last is not None and (said := spoken_of(home(), project.traffic, last.sequence)):
        ids = _of_problems(turn, _spoken_of(turn, said))
    done = _grade(turn, ids)
    looked(turn, grader, MADE)
    return done


def _rollouts(live: Sequence[Dataset]) -> list[str]:
    """Ids of what the datasets' rows are of."""
    from storage.dataset_rows import identities

    here = (one for one in live if (home().path(one.path) / "rows.parquet").is_file())
    return sorted({trace for one in here for trace, _, _ in identities(home(), one)})


def _spoken_of(turn: Turn, said: Sequence[str]) -> list[str]:
    """Ids of the problems that these traces pose. Those whose answer is another now are stored
    anew, on the side and with the pick that they have."""
    from msgspec.structs import replace

    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.queries import problems
    from tasks.mine import mined

    project, spoken = project_of(turn), set(said)
    stored = {one.id: one for one in problems(home(), environment_of(project).name)}
    found = {one.id for one in stored.values() if one.trace_id in spoken}
    if not found:
        return []
    new = []
    for one in mined(project, turn.sequence, turn.at):
        old = stored.get(one.id)
        if old is not None and (old.answer, old.truth_from) != (one.answer, one.truth_from):
            new.append(replace(old, answer=one.answer, truth_from=one.truth_from))
    if new:
        Inbox(home()).append(new)
        commit(home())
    return sorted(found | {one.id for one in new})


def _of_problems(turn: Turn, problems: Sequence[str]) -> list[str]:
    from storage.queries import traces

    if not problems:
        return []
    found = traces(home(), project=turn.project, origin="rollout", problem_ids=problems)
    return [one.id for batch in found for one in batch]


def _grade(turn: Turn, ids: Sequence[str]) -> int:
    """Those of `ids` that are rollouts; recorded traces have a look of their own."""
    from storage.committer import commit
    from storage.moments import moment
    from tasks.regrade import Narrowed, regraded

    if not ids:
        return 0
    project = project_of(turn)
    judge, now, done = judge_of(project, home()), moment(home()), 0

    def judging(items: "list[Item]") -> "Sequence[Item]":
        return [one._replace(judge=judge) for one in items] if judge else items

    which = Narrowed(ids=ids, origins=("rollout",))
    for batch in regraded(home(), environment_of(project), which, judging, batch=BATCH):
        keep_new([grade for one in batch for grade in one.after], now)
        done += len(batch)
        report("grading again", done, len(ids))
    commit(home())
    return done

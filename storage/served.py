"""What was served: recent production traces, those whose routing was drawn, and what a run learnt.

Enter a home and what is wanted; leave ids, the newest first. Copies and what shadows answered are
never among them.
"""

from typing import Any

from flywheel.home import Home
from flywheel.lineage import Dataset, Run
from flywheel.records import Record
from storage.database import reading
from storage.dataset_rows import identities

_SERVED = """FROM traces WHERE project = $project AND origin = 'production' AND duplicate_of IS NULL
    AND ($since IS NULL OR started >= $since)
    AND source <> 'shadow'"""
_DRAWN = """AND id IN (SELECT trace_id FROM spans WHERE routing_probability > 0
    AND routing_probability < 1 AND copy_of IS NULL)"""
_NEWEST = "ORDER BY started DESC NULLS LAST, id LIMIT $limit"


def recent(home: Home, project: str, *, limit: int, since: int | None = None) -> list[str]:
    """Ids of production traces that users saw the answers of."""
    return _ids(home, "", project, limit, since)


def drawn(home: Home, project: str, *, limit: int) -> list[str]:
    """Of those, such with a call for which a deployment was drawn among several."""
    return _ids(home, _DRAWN, project, limit, None)


def _ids(home: Home, narrowed: str, project: str, limit: int, since: int | None) -> list[str]:
    given: dict[str, Any] = {"project": project, "since": since, "limit": limit}
    with reading(home) as database:
        if database is None:
            return []
        rows = database.execute(f"SELECT id {_SERVED} {narrowed} {_NEWEST}", given).fetchall()
    return [one for (one,) in rows]


class Learnt(Record, frozen=True, kw_only=True):
    """What weights have seen in training, by the ids that a recorded trace may have."""

    traces: frozenset[str] = frozenset()
    problems: frozenset[str] = frozenset()
    conversations: frozenset[str] = frozenset()

    def saw(self, trace: str, problem: str, conversation: str | None) -> bool:
        return (
            trace in self.traces
            or problem in self.problems
            or (conversation is not None and conversation in self.conversations)
        )


def learnt(home: Home, run_id: str | None) -> Learnt:
    """By the run and all whose weights it started from: rows of their datasets, and problems that
    they sampled."""
    from storage.queries import records

    runs: dict[str, Run] = {one.id: one for one in records(home, "run")}
    made = {one.name: one.run_id for one in records(home, "deployment")}
    datasets: dict[str, Dataset] = {one.id: one for one in records(home, "dataset")}
    chain: list[Run] = []
    while run_id in runs and runs[run_id] not in chain:
        chain.append(runs[run_id])
        run_id = made.get(chain[-1].champion)
    read = [datasets[one.dataset_id] for one in chain if one.dataset_id in datasets]
    rows = [row for dataset in read for row in identities(home, dataset)]
    sampled = _sampled(home, [one.id for one in chain])
    return Learnt(
        traces=frozenset(trace for trace, _, _ in rows),
        problems=sampled | {problem for _, problem, _ in rows if problem is not None},
        conversations=frozenset(one for _, _, one in rows if one is not None),
    )


def _sampled(home: Home, runs: list[str]) -> frozenset[str]:
    with reading(home) as database:
        if database is None or not runs:
            return frozenset()
        rows = database.execute(
            "SELECT DISTINCT problem_id FROM traces WHERE origin = 'rollout' AND problem_id IS NOT "
            "NULL AND run_id IN (SELECT unnest($runs))",
            {"runs": runs},
        ).fetchall()
    return frozenset(one for (one,) in rows)

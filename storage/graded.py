"""Graded traces as the schedule asks for them: how many there are, and how good the first and the
last answers of a deployment were. Read-only, one short open each."""

from flywheel.home import Home
from flywheel.records import Record
from storage.copies import RECORDED
from storage.database import reading
from storage.verdicts import rewarded

_SCORED = "SELECT trace_id, reward AS score FROM ({rewarded}) WHERE reward IS NOT NULL"
SCORED = _SCORED.format(rewarded=rewarded("FROM grades"))
"""As `environments.grading.score` does it: a trace of which any reward is not known has none."""


class Means(Record, frozen=True, kw_only=True):
    traces: int
    """Graded production traces that the deployment answered."""
    first: float | None
    """Mean score of the earliest `size`; None = fewer than two times `size`, so that the two would
    share traces."""
    last: float | None
    """Of the latest `size`."""


def graded(home: Home, project: str) -> int:
    """Recorded traces of which all rewards are known, copies counted once."""
    with reading(home) as database:
        if database is None:
            return 0
        ((count,),) = database.execute(
            f"SELECT count(*) FROM traces SEMI JOIN ({SCORED}) scored ON trace_id = traces.id "
            f"WHERE project = $project AND duplicate_of IS NULL AND origin IN {RECORDED}",
            {"project": project},
        ).fetchall()
    return int(count)


def first_and_last(home: Home, project: str, deployment: str, size: int) -> Means:
    """How good the first and the last `size` graded production answers of a deployment were."""
    with reading(home) as database:
        if database is None:
            return Means(traces=0, first=None, last=None)
        ((count, first, last),) = database.execute(
            f"""WITH answered AS (
                SELECT score, row_number() OVER (ORDER BY started NULLS FIRST, id) AS number,
                    count(*) OVER () AS total
                FROM traces JOIN ({SCORED}) scored ON trace_id = traces.id
                WHERE project = $project AND duplicate_of IS NULL AND origin = 'production'
                AND id IN (SELECT trace_id FROM spans WHERE deployment = $deployment))
            SELECT count(*), avg(score) FILTER (number <= $size),
                avg(score) FILTER (number > total - $size) FROM answered""",
            {"project": project, "deployment": deployment, "size": size},
        ).fetchall()
    if count < 2 * size:
        first = last = None
    return Means(traces=int(count), first=first, last=last)


def pass_rates(
    home: Home, project: str, deployment: str, *, until: int | None = None
) -> dict[str, tuple[float, int]]:
    """Problem id -> (share of the deployment's graded answers that earned full marks, their count).
    Recorded answers, rollouts and evaluations count alike.

    Args:
        until: the ledger's sequence after which no grade was seen. None = all.
    """
    scored = SCORED
    if until is not None:
        scored = _SCORED.format(rewarded=rewarded(f"FROM grades WHERE since <= {int(until)}"))
    with reading(home) as database:
        if database is None:
            return {}
        rows = database.execute(
            "SELECT problem_id, avg((score >= 1 - 1e-9)::DOUBLE), count(*) "
            f"FROM ({scored}) scored JOIN (SELECT DISTINCT trace_id, problem_id FROM grades "
            "WHERE problem_id IS NOT NULL) posed USING (trace_id) "
            "SEMI JOIN (SELECT trace_id FROM cards WHERE project = $project AND "
            "deployment = $deployment AND trace_id = stands_for) answered USING (trace_id) "
            "GROUP BY problem_id",
            {"project": project, "deployment": deployment},
        ).fetchall()
    return {id: (float(share), int(count)) for id, share, count in rows}

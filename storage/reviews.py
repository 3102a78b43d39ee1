"""Which answers people may compare, and how far reviewing has come.

Enter a project and who looks; leave pairs and counts. What somebody saved and no commit has taken
in yet is not seen here: `storage.leases` keeps it from being offered again.
"""

from typing import NamedTuple

from flywheel.home import Home
from flywheel.records import Record
from flywheel.reviews import one_person
from storage.copies import RECORDED
from storage.database import reading
from storage.rows import named
from storage.verdicts import reviews, rewarded

FEW = 5
"""Fewer judged in common than this say nothing about agreement."""
_WAIT_S = 5.0
_LATEST = 50_000
"""Recorded traces that are looked through for two answers to one prompt."""


class Pair(NamedTuple):
    first: str
    second: str
    about: str
    """The problem, or the prompt's digest, that both answer."""


class Compared(NamedTuple):
    """What people say of two answers."""

    first: str
    second: str
    better: float
    """Mean over people: 1 = the first, 0 = the second, 0.5 = neither."""


class Agreement(Record, frozen=True, kw_only=True):
    share: float | None
    """None = too few to say."""
    common: int


class Progress(Record, frozen=True, kw_only=True):
    answers: int
    """Recorded answers that may be reviewed."""
    reviewed: int
    """By anybody."""
    mine: int
    with_reward: Agreement
    """My verdict against the environment's grade (from 0.5 on: right)."""
    with_others: Agreement


def pairs(home: Home, project: str, *, me: str, limit: int = 100) -> list[Pair]:
    """Two different answers to one problem, or one prompt, that I have not compared yet."""
    values = {"project": project, "me": me}
    with reading(home, wait_s=_WAIT_S) as database:
        if database is None:
            return []
        rows = database.execute(_PAIRS.format(limit=int(limit)), values).fetchall()
    return [Pair(*row) for row in rows]


_PAIRS = f"""
WITH posed AS (
    SELECT trace_id, problem_id AS about, started, reward FROM cards
    WHERE project = $project AND answered AND problem_id IS NOT NULL AND stands_for = trace_id
    ORDER BY started DESC NULLS LAST LIMIT {_LATEST}
), asked AS (
    SELECT trace_id, started, reward FROM cards
    WHERE project = $project AND answered AND origin IN {RECORDED} AND stands_for = trace_id
        AND calls = 1
    ORDER BY started DESC NULLS LAST LIMIT {_LATEST}
), said AS (
    SELECT posed.*, output[1] AS answer FROM posed JOIN spans USING (trace_id)
    WHERE len(output) > 0
    UNION ALL
    SELECT asked.trace_id, md5(array_to_string(input, ' ')), asked.started, reward, output[1]
    FROM asked JOIN spans USING (trace_id) WHERE len(output) > 0
), distinct_said AS (
    SELECT about, answer, min(trace_id) AS trace_id, max(started) AS started, avg(reward) AS reward
    FROM said GROUP BY about, answer
), judged AS (
    SELECT target, name FROM (
        SELECT target, name, body FROM feedback WHERE project = $project AND said_by = $me
            AND starts_with(name, 'compared:')
        QUALIFY row_number() OVER (PARTITION BY target, name ORDER BY said DESC, id DESC) = 1
    ) WHERE body ->> '$.value' <> 'withdrawn'
)
SELECT one.trace_id, other.trace_id, one.about
FROM distinct_said AS one JOIN distinct_said AS other
    ON one.about = other.about AND one.trace_id < other.trace_id
WHERE NOT EXISTS (SELECT 1 FROM judged WHERE (target = one.trace_id
    AND name = 'compared:' || other.trace_id) OR (target = other.trace_id
    AND name = 'compared:' || one.trace_id))
QUALIFY row_number() OVER (PARTITION BY one.about ORDER BY
    abs(coalesce(one.reward, 0.5) - coalesce(other.reward, 0.5)), one.trace_id) <= 3
ORDER BY greatest(one.started, other.started) DESC NULLS LAST, one.trace_id, other.trace_id
LIMIT {{limit}}
"""


def verdicts(home: Home, project: str) -> dict[str, float]:
    """Of every answer that was reviewed, the mean of people's verdicts: 1 accepted, 0 rejected or
    corrected."""
    with reading(home) as database:
        if database is None:
            return {}
        rows = database.execute(
            "SELECT trace_id, verdict FROM cards WHERE project = ? AND verdict IS NOT NULL "
            "AND stands_for = trace_id ORDER BY trace_id",
            [project],
        ).fetchall()
    return dict(rows)


def comparisons(home: Home, project: str, *, until: int | None = None) -> list[Compared]:
    """Every pair that was compared, once, whoever came first then.

    Args:
        until: the ledger's sequence after which nothing was seen. None = all.
    """
    with reading(home) as database:
        if database is None:
            return []
        rows = database.execute(_COMPARED, [project, until, until]).fetchall()
    return [Compared(*row) for row in rows]


_COMPARED = """
WITH latest AS (
    SELECT target AS one, substr(name, 10) AS other, body ->> '$.value' AS said FROM feedback
    WHERE project = ? AND (?::BIGINT IS NULL OR since <= ?) AND target_kind = 'trace'
        AND starts_with(name, 'compared:')
    QUALIFY row_number() OVER (PARTITION BY target, name, said_by ORDER BY said DESC, id DESC) = 1
)
SELECT one, other, avg(CASE said WHEN 'better' THEN 1.0 WHEN 'equal' THEN 0.5 ELSE 0.0 END)
FROM latest WHERE one < other AND said IN ('better', 'equal', 'worse')
GROUP BY one, other ORDER BY one, other
"""


def progress(home: Home, project: str, me: str) -> Progress:
    nothing, me = Agreement(share=None, common=0), one_person(me)
    with reading(home, wait_s=_WAIT_S) as database:
        if database is None:
            return Progress(answers=0, reviewed=0, mine=0, with_reward=nothing,
                            with_others=nothing)  # fmt: skip
        ((answers, reviewed, mine),) = database.execute(
            "SELECT count(*), count(*) FILTER (len(reviewers) > 0), "
            "count(*) FILTER (list_contains(reviewers, $me)) FROM cards WHERE "
            f"project = $project AND answered AND stands_for = trace_id AND origin IN {RECORDED}",
            {"project": project, "me": me},
        ).fetchall()
        (found,) = named(database, _AGREEMENT, {"project": project, "me": me})
    return Progress(
        answers=answers, reviewed=reviewed, mine=mine,
        with_reward=_share(found["right"], found["graded"]),
        with_others=_share(found["same"], found["shared"]),
    )  # fmt: skip


def _share(same: int | None, common: int | None) -> Agreement:
    common = common or 0
    return Agreement(share=(same or 0) / common if common >= FEW else None, common=common)


_BY_PROGRAM = "FROM grades SEMI JOIN mine USING (trace_id) WHERE kind IN ('code', 'judge')"
_AGREEMENT = f"""
WITH standing AS (
    SELECT trace_id, person, good FROM ({reviews("project = $project")})
), mine AS (
    SELECT trace_id, good FROM standing WHERE person = $me
), rewarded AS (
    SELECT trace_id, reward >= 0.5 AS good FROM ({rewarded(_BY_PROGRAM)}) WHERE reward IS NOT NULL
)
SELECT
    (SELECT count(*) FROM mine JOIN rewarded USING (trace_id)) AS graded,
    (SELECT count(*) FROM mine JOIN rewarded USING (trace_id) WHERE mine.good = rewarded.good)
        AS "right",
    (SELECT count(*) FROM mine JOIN standing USING (trace_id) WHERE person <> $me) AS shared,
    (SELECT count(*) FROM mine JOIN standing USING (trace_id)
        WHERE person <> $me AND mine.good = standing.good) AS same
"""

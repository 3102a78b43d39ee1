"""Which recorded traces are copies of others under other ids: exported again, seen by two sources.

Two traces of a project are candidates when the same was said in them. What one source recorded at
different times are different events, so the k-th of one source can only be a copy of the k-th of
another: `duplicate_of` names the one that counts (our own capture before others, then by time and
id). Sampled answers are never copies, and neither is what a shadow answered in the same words as
the deployment that users heard: that the two agree is what it was asked for. The outcome depends on
the set of traces alone.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

RECORDED = "('production', 'import', 'demonstration')"

_FOUND = f"""
CREATE OR REPLACE TEMP TABLE copies AS
WITH touched AS (
    SELECT project, content FROM traces WHERE since = $sequence
    UNION
    SELECT project, content FROM traces_history WHERE "until" = $sequence
), alike AS MATERIALIZED (
    SELECT id, project, content, source, origin, started, duplicate_of
    FROM traces SEMI JOIN touched USING (project, content)
    WHERE content IS NOT NULL AND origin IN {RECORDED} AND source <> 'shadow'
), several AS (  -- most were said once, and are no copies: those are not sorted
    SELECT content FROM alike GROUP BY content HAVING count(*) > 1 OR count(duplicate_of) > 0
), members AS (
    SELECT *, dense_rank() OVER (
        PARTITION BY project, content, source ORDER BY started NULLS FIRST
    ) AS occurrence
    FROM alike SEMI JOIN several USING (content)
), placed AS (
    SELECT id, duplicate_of, first_value(id) OVER (
        PARTITION BY project, content, occurrence
        ORDER BY origin <> 'production', started NULLS LAST, id
    ) AS original
    FROM members
)
SELECT id, nullif(original, id) AS original FROM placed
WHERE duplicate_of IS DISTINCT FROM nullif(original, id)
"""


def mark_copies(database: "DuckDBPyConnection", sequence: int) -> int:
    """Sets `duplicate_of` wherever this transaction changed it; returns how many became copies."""
    database.execute(_FOUND, {"sequence": sequence})
    ((changed, copied),) = database.execute(
        "SELECT count(*), count(original) FROM copies"
    ).fetchall()
    if not changed:
        return 0
    database.execute(
        "INSERT INTO traces_history SELECT *, $sequence FROM traces "
        "WHERE since < $sequence AND id IN (SELECT id FROM copies)",
        {"sequence": sequence},
    )
    database.execute(
        "UPDATE traces SET duplicate_of = original, since = $sequence FROM copies "
        "WHERE traces.id = copies.id",
        {"sequence": sequence},
    )
    return int(copied)

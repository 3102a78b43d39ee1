"""Which recorded traces are others than they were, or have been spoken of since; and what they were
graded, over all of them.

A project and a ledger sequence enter; leave ids and counts. Copies are counted with what they stand
for, and shadows with what they copy. Read-only, one short open each.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from flywheel.home import Home
from flywheel.records import Record
from storage.copies import RECORDED
from storage.database import reading
from storage.rows import seen_as, table_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SPOKEN_OF = """
WITH said AS (SELECT DISTINCT target, target_kind FROM feedback
    WHERE project = $project AND since > $since),
mine AS (SELECT * FROM cards WHERE project = $project)
SELECT stands_for AS id FROM mine JOIN said
    ON target_kind = 'conversation' AND conversation = target
UNION SELECT stands_for FROM mine JOIN said
    ON target_kind IN ('trace', 'episode') AND trace_id = target
UNION SELECT stands_for FROM mine JOIN said
    ON target_kind IN ('trace', 'episode') AND external_id = target
UNION SELECT stands_for FROM (SELECT stands_for, unnest(handles) AS handle FROM mine) JOIN said
    ON target_kind <> 'conversation' AND handle = target
"""
"""As `storage.cards` finds whom feedback is about; of all that came since."""
_CAME = """SELECT coalesce(duplicate_of, id) AS id FROM traces
    WHERE project = $project AND since > $since"""
_SHADOWS = """SELECT trace_id FROM (
        SELECT trace_id, rest ->> '$.attributes.shadow_of.trace' AS seen FROM spans
        WHERE contains(rest, '"shadow_of"')) SEMI JOIN found ON seen = found.id"""
_STANDING = f"""SELECT id, started FROM traces WHERE project = $project
    AND duplicate_of IS NULL AND origin IN {RECORDED}"""
_DAY = 86_400_000_000_000


class Gradings(Record, frozen=True, kw_only=True):
    graded: int
    """Traces with a reward that is known."""
    unknown: int
    """Traces with one that is not."""
    reasons: dict[str, int]
    """Why not, each trace once, the most frequent first."""


def last_sequence(home: Home) -> int:
    """Of the store's last transaction; 0 = nothing was ever committed."""
    with reading(home) as database:
        if database is None:
            return 0
        ((found,),) = database.execute("SELECT coalesce(max(sequence), 0) FROM segments").fetchall()
    return int(found)


def spoken_of(home: Home, project: str, since: int) -> list[str]:
    """Traces that something was said of after `since`, whatever their origin."""
    with reading(home) as database:
        return [] if database is None else _ids(database, SPOKEN_OF, project, since)


def changed(home: Home, project: str, since: int) -> list[str]:
    """Recorded traces that came, changed or were spoken of after `since`."""
    with reading(home) as database:
        if database is None:
            return []
        found = {*_ids(database, _CAME, project, since), *_ids(database, SPOKEN_OF, project, since)}
        if not found:
            return []
        with seen_as(database, "found", _table(found)):
            standing = f"SELECT id FROM ({_STANDING}) AS known"
            return _ids(
                database,
                f"{standing} SEMI JOIN (SELECT id FROM found UNION {_SHADOWS}) USING (id)",
                project,
            )


def not_judged(home: Home, project: str, sampled_out: str) -> list[str]:
    """Recorded traces that a judge gave no verdict on.

    Args:
        sampled_out: how the reason begins where it was not to be asked.
    """
    with reading(home) as database:
        if database is None:
            return []
        rows = database.execute(
            "SELECT DISTINCT trace_id FROM (SELECT * FROM grades QUALIFY row_number() OVER "
            "(PARTITION BY trace_id, span_id, reward ORDER BY given DESC, since DESC, digest DESC)"
            f" = 1) SEMI JOIN ({_STANDING}) AS known ON trace_id = known.id "
            "WHERE kind = 'judge' AND value IS NULL "
            "AND NOT starts_with(coalesce(reason, ''), $sampled_out) ORDER BY trace_id",
            {"project": project, "sampled_out": sampled_out},
        ).fetchall()
    return [one for (one,) in rows]


def of_whole_days(home: Home, project: str, ids: Collection[str]) -> list[str]:
    """All recorded traces of the days (UTC) that those of `ids` began on: what a judge is asked is
    a sample of each day."""
    with reading(home) as database:
        if database is None or not ids:
            return []
        with seen_as(database, "found", _table(ids)):
            return _ids(
                database,
                f"WITH known AS (SELECT id, coalesce(started // {_DAY}, -1) AS day FROM "
                f"({_STANDING})) SELECT id FROM known WHERE day IN "
                "(SELECT day FROM known SEMI JOIN found USING (id))",
                project,
            )


def gradings(home: Home, project: str, rewards: Sequence[str], most: int) -> Gradings:
    """What the project's recorded traces were graded, by the latest grade of each of `rewards`.

    Args:
        rewards: in the order in which a trace's reason is looked for.
        most: reasons that are named.
    """
    with reading(home) as database:
        if database is None:
            return Gradings(graded=0, unknown=0, reasons={})
        given = {"project": project, "rewards": list(rewards)}
        rows = database.execute(_GRADINGS, given).fetchall()
    unknown = [(reason, count) for reason, _, count in rows if reason is not None]
    return Gradings(
        graded=sum(count for _, known, count in rows if known),
        unknown=sum(count for _, count in unknown),
        reasons=_summed(unknown, most),
    )


def _summed(counts: list[tuple[str, int]], most: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for reason, count in counts:
        found[reason] = found.get(reason, 0) + count
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:most])


_GRADINGS = f"""
WITH latest AS (
    SELECT trace_id, reward, value, weight, reason FROM grades
    SEMI JOIN ({_STANDING}) AS known ON trace_id = known.id
    WHERE list_contains($rewards, reward)
    QUALIFY row_number() OVER (PARTITION BY trace_id, span_id, reward
                               ORDER BY given DESC, since DESC, digest DESC) = 1
), told AS (
    SELECT trace_id, count(value) > 0 AS known,
        CASE WHEN count(*) > count(value) THEN coalesce(left(split_part(
            arg_min(nullif(reason, ''), list_position($rewards, reward)) FILTER (value IS NULL),
            chr(10), 1), 120), 'no reward') END AS why
    FROM latest WHERE weight > 0 GROUP BY trace_id
)
SELECT why, known, count(*) FROM told GROUP BY ALL ORDER BY ALL
"""


def _ids(database: "DuckDBPyConnection", query: str, project: str, since: int = 0) -> list[str]:
    values = {"project": project} | ({"since": since} if "$since" in query else {})
    rows = database.execute(f"SELECT DISTINCT id FROM ({query}) ORDER BY id", values).fetchall()
    return [one for (one,) in rows]


def _table(ids: Collection[str]) -> object:
    return table_of({"id": "VARCHAR"}, [(one,) for one in sorted(ids)])

"""Aggregates over a project's recorded traffic, for people who look: one short read-only open.

Enter a home and a project; leave counts, means and sums by time and by deployment, never traces.
What is not known is None, and beside each sum stands how many calls it is over. A trace's reward is
what `environments.grading.score` says: the weighted mean of its latest rewards, none if one misses.
"""

from typing import TYPE_CHECKING, Any

from flywheel.home import Home
from flywheel.records import Record
from storage.copies import RECORDED
from storage.database import reading
from storage.rows import named

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MINUTE = 60 * 10**9
WIDTHS = tuple(_MINUTE * minutes for minutes in (1, 5, 15, 60, 180, 360, 1440, 10080, 43200))
"""Widths that a bucket may have, in nanoseconds: a minute to thirty days."""
MOST_BUCKETS = 100


class Bucket(Record, frozen=True, kw_only=True):
    """Recorded traces that began in one stretch of time."""

    start: int
    traces: int
    graded: int
    """Of them, those whose reward is known."""
    reward: float | None
    """Mean over the graded; None = none is."""
    spread: float | None
    """Standard deviation of the graded; None = fewer than two are."""


class Traffic(Record, frozen=True, kw_only=True):
    """Model calls of recorded traces, counted once."""

    deployment: str | None
    """What answered; None = it was not ours, or was not said."""
    calls: int
    with_usage: int
    """Calls that say what they used: the token sums are over these."""
    input_tokens: int | None
    output_tokens: int | None
    with_cost: int
    cost_usd: float | None
    seconds: float | None
    """Median time of a call."""
    first: int | None
    last: int | None
    graded: int
    """Calls of traces whose reward is known."""
    reward: float | None
    """Mean over these."""


class Glance(Record, frozen=True, kw_only=True):
    traces: int
    undated: int
    """Traces that say no time, and stand in no bucket."""
    first: int | None
    last: int | None
    width: int
    """Of a bucket, in nanoseconds."""
    buckets: tuple[Bucket, ...]
    """In order of time; stretches without traces are left out."""
    traffic: tuple[Traffic, ...]
    """By deployment, the newest first."""
    ungraded: int
    reasons: tuple[tuple[str, int], ...]
    """Why, most frequent first; "" = no grader has looked at them yet."""
    disagreeing: int
    """Graders of different kinds are half a point or more apart, and no person has said."""
    view_only: int
    """Cannot be trained on."""


def sequence(home: Home, *, wait_s: float = 120.0) -> int:
    """The last transaction of the ledger; 0 = there is none yet.

    Raises:
        Busy: a commit is under way for longer than `wait_s`.
    """
    with reading(home, wait_s=wait_s) as database:
        if database is None:
            return 0
        ((last,),) = database.execute("SELECT coalesce(max(sequence), 0) FROM segments").fetchall()
        return int(last)


def glance(home: Home, project: str, *, since: int | None = None) -> Glance | None:
    """What was recorded, from `since` on (None = all of it); None = nothing was committed yet.

    Some 1.5 CPU seconds over a million traces: to be kept by `sequence`.
    """
    with reading(home) as database:
        if database is None:
            return None
        given = {"project": project, "since": since}
        database.execute(_MINE, given)
        database.execute(_SCORED)
        (about,) = named(database, _ABOUT, {})
        width = _width((about["last"] or 0) - (about["first"] or 0))
        return Glance(
            **about,
            width=width,
            buckets=tuple(Bucket(**row) for row in _rows(database, _BUCKETS, width=width)),
            traffic=tuple(Traffic(**row) for row in _rows(database, _TRAFFIC)),
            reasons=tuple((row["why"], row["traces"]) for row in _rows(database, _REASONS)),
        )


def _rows(database: "DuckDBPyConnection", query: str, **given: Any) -> list[dict[str, Any]]:
    return named(database, query, given)


def _width(stretch: int) -> int:
    return next((width for width in WIDTHS if stretch // width < MOST_BUCKETS), WIDTHS[-1])


_MINE = f"""CREATE TEMP TABLE mine AS SELECT id, started, fidelity FROM traces
    WHERE project = $project AND duplicate_of IS NULL AND origin IN {RECORDED}
    AND ($since IS NULL OR started >= $since)"""
_SCORED = """CREATE TEMP TABLE scored AS SELECT trace_id,
    CASE WHEN count(*) = count(value) THEN sum(value * weight) / sum(weight) END AS reward,
    min(reason) FILTER (value IS NULL) AS reason,
    min(kind) <> max(kind) AND max(value) - min(value) >= 0.5 AND NOT bool_or(kind = 'human')
        AS disagreeing
    FROM (
        SELECT trace_id, value, weight, kind, reason
        FROM grades SEMI JOIN mine ON trace_id = mine.id WHERE span_id IS NULL
        QUALIFY row_number() OVER (PARTITION BY trace_id, reward
                                   ORDER BY given DESC, since DESC, digest DESC) = 1
    ) WHERE weight > 0 GROUP BY trace_id"""
_ABOUT = """SELECT count(*) AS traces, count(*) FILTER (started IS NULL) AS undated,
    min(started) AS first, max(started) AS last, count(*) - count(reward) AS ungraded,
    count(*) FILTER (disagreeing) AS disagreeing,
    count(*) FILTER (fidelity = 'view_only') AS view_only
    FROM mine LEFT JOIN scored ON id = trace_id"""
_BUCKETS = """SELECT started // $width * $width AS start, count(*) AS traces,
    count(reward) AS graded, avg(reward) AS reward, stddev_samp(reward) AS spread
    FROM mine LEFT JOIN scored ON id = trace_id WHERE started IS NOT NULL
    GROUP BY ALL ORDER BY start"""
_TRAFFIC = """SELECT deployment, count(*) AS calls,
    count(*) FILTER (input_tokens IS NOT NULL OR output_tokens IS NOT NULL) AS with_usage,
    sum(input_tokens)::BIGINT AS input_tokens, sum(output_tokens)::BIGINT AS output_tokens,
    count(cost_usd) AS with_cost, sum(cost_usd) AS cost_usd,
    approx_quantile((ended - spans.started) / 1e9, 0.5)::DOUBLE AS seconds,
    min(spans.started) AS first, max(spans.started) AS last,
    count(reward) AS graded, avg(reward) AS reward
    FROM spans JOIN mine ON spans.trace_id = mine.id LEFT JOIN scored ON mine.id = scored.trace_id
    WHERE copy_of IS NULL AND input IS NOT NULL GROUP BY deployment
    ORDER BY last DESC NULLS LAST, deployment"""
_REASONS = """SELECT coalesce(reason, '') AS why, count(*) AS traces
    FROM mine LEFT JOIN scored ON id = trace_id WHERE reward IS NULL
    GROUP BY why ORDER BY traces DESC, why LIMIT 5"""

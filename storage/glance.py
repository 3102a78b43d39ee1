"""Aggregates over a project's recorded traffic, for people who look: one short read-only open.

Enter a home and a project; leave counts, means and sums by time and by deployment, never traces.
Everything but cost comes from the traces' cards (`storage.cards`), so no join is paid for. What is
not known is None, and beside each sum stands how many traces it is over.
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
    """Recorded traces whose last answer one deployment gave."""

    deployment: str | None
    """None = it was not ours, or was not said."""
    traces: int
    calls: int
    with_usage: int
    """Traces all of whose calls say what they used: the token sums are over these."""
    input_tokens: int | None
    output_tokens: int | None
    seconds: float | None
    """Median time from a trace's begin to its end."""
    first: int | None
    last: int | None
    graded: int
    reward: float | None
    """Mean over the graded."""
    spread: float | None


class Glance(Record, frozen=True, kw_only=True):
    traces: int
    undated: int
    """Traces that say no time, and stand in no bucket."""
    first: int | None
    last: int | None
    graded: int
    reward: float | None
    calls: int
    priced: int
    """Calls that say what they cost: the sum is over these."""
    cost_usd: float | None
    width: int
    """Of a bucket, in nanoseconds."""
    buckets: tuple[Bucket, ...]
    """In order of time; stretches without traces are left out."""
    traffic: tuple[Traffic, ...]
    """By deployment, the newest first."""
    ungiven: int
    """Graders looked at them and could not say."""
    unseen: int
    """No grader has looked at them."""
    disagreeing: int
    """What people said of the answer and its reward are half a point or more apart, and no
    reviewer has judged it."""
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
    """What was recorded, from `since` on (None = all of it); None = nothing was committed yet."""
    with reading(home) as database:
        if database is None:
            return None
        given = {"project": project, "since": since}
        (about,) = named(database, _ABOUT, given)
        (price,) = named(database, _PRICE, given)
        width = _width((about["last"] or 0) - (about["first"] or 0))
        buckets = _rows(database, _BUCKETS, given, width=width)
        return Glance(
            **about,
            **price,
            width=width,
            buckets=tuple(Bucket(**row) for row in buckets),
            traffic=tuple(Traffic(**row) for row in _rows(database, _TRAFFIC, given)),
        )


def _rows(
    database: "DuckDBPyConnection", query: str, given: dict[str, Any], **more: Any
) -> list[dict[str, Any]]:
    return named(database, query, {**given, **more})


def _width(stretch: int) -> int:
    return next((width for width in WIDTHS if stretch // width < MOST_BUCKETS), WIDTHS[-1])


_MINE = f"""FROM cards WHERE project = $project AND stands_for = trace_id AND origin IN {RECORDED}
    AND ($since IS NULL OR started >= $since)"""
_ABOUT = f"""SELECT count(*) AS traces, count(*) - count(started) AS undated,
    min(started) AS first, max(started) AS last, count(reward) AS graded, avg(reward) AS reward,
    coalesce(sum(calls), 0)::BIGINT AS calls,
    count(*) FILTER (reward IS NULL AND ungiven > 0) AS ungiven,
    count(*) FILTER (reward IS NULL AND ungiven = 0) AS unseen,
    count(*) FILTER (verdict IS NULL AND abs(liked - reward) >= 0.5) AS disagreeing,
    count(*) FILTER (fidelity = 'view_only') AS view_only
    {_MINE}"""
_PRICE = f"""SELECT count(*) AS priced, sum(cost_usd) AS cost_usd FROM spans
    WHERE cost_usd IS NOT NULL AND copy_of IS NULL AND trace_id IN (SELECT trace_id {_MINE})"""
_BUCKETS = f"""SELECT started // $width * $width AS start, count(*) AS traces,
    count(reward) AS graded, avg(reward) AS reward, stddev_samp(reward) AS spread
    {_MINE} AND started IS NOT NULL GROUP BY ALL ORDER BY start"""
_TRAFFIC = f"""SELECT deployment, count(*) AS traces, sum(calls)::BIGINT AS calls,
    count(*) FILTER (calls > 0 AND (input_tokens IS NOT NULL OR output_tokens IS NOT NULL))
        AS with_usage,
    sum(input_tokens)::BIGINT AS input_tokens, sum(output_tokens)::BIGINT AS output_tokens,
    approx_quantile((ended - started) / 1e9, 0.5)::DOUBLE AS seconds,
    min(started) AS first, max(started) AS last,
    count(reward) AS graded, avg(reward) AS reward, stddev_samp(reward) AS spread
    {_MINE} AND answered GROUP BY deployment ORDER BY last DESC NULLS LAST, deployment"""

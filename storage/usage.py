"""What passed through the gateway, in calls, tokens and dollars: by project, key, deployment, day.

Enters what to group by; leaves one line a group. Every call counts that was answered or tried,
copies and shadows too, since each was paid for. Invariant: a sum stands beside the number of calls
that it is over; a sum over none is None, never 0.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.records import Record
from storage.database import reading
from storage.rows import named

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

By = Literal["project", "key", "deployment", "day"]
GROUPS: dict[By, str] = {
    "project": "t.project",
    "key": "CASE t.source WHEN 'gateway' THEN s.rest ->> '$.attributes.key' END",
    "deployment": "s.deployment",
    "day": "strftime(make_timestamp_ns(s.started), '%Y-%m-%d')",
}
"""What each group is named by; a day is UTC's. None = it has none: a call without a key, a shadow
that no key asked for."""


class Used(Record, frozen=True, kw_only=True):
    group: dict[str, str | None]
    """By what was asked for."""
    calls: int
    failed: int
    """Without a whole answer; what it took counts where somebody counted it."""
    counted: int
    """Calls whose tokens are known: the sums of tokens are over these."""
    input_tokens: int | None
    """Of all prompts, cached ones included."""
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    """Of all answers, reasoning included."""
    reasoning_tokens: int | None
    priced: int
    """Calls whose cost is known: the sum of dollars is over these."""
    cost_usd: float | None
    partial: bool
    """Whether a call that was answered has no known cost."""
    why: str | None = None
    """The most frequent reason for that."""


def usage(
    home: Home,
    by: Sequence[By],
    *,
    project: str | None = None,
    since: int | None = None,
    until: int | None = None,
) -> list[Used]:
    """Sorted by group. What no commit has taken in yet is not in it (`storage.overview.waiting`).

    Args:
        since: when calls began, nanoseconds since the epoch; `until` is not part of it.

    Raises:
        UsageError: grouped by what is none.
    """
    unknown = [one for one in by if one not in GROUPS]
    if unknown:
        raise UsageError(f"usage goes by {', '.join(GROUPS)}, not by {unknown[0]}")
    with reading(home) as database:
        if database is None:
            return []
        return _used(database, list(dict.fromkeys(by)), project, since, until)


def _used(
    database: "DuckDBPyConnection",
    by: list[By],
    project: str | None,
    since: int | None,
    until: int | None,
) -> list[Used]:
    groups = "".join(f"{GROUPS[one]} AS by_{one}, " for one in by)
    given = {"project": project, "since": since, "until": until}
    rows = named(database, _SUMS.format(groups=groups), given)
    found = []
    for row in rows:
        group: dict[str, str | None] = {one: row.pop(f"by_{one}") for one in by}
        if row["calls"]:
            found.append(Used(group=group, **row))
    return sorted(
        found, key=lambda one: [(name is None, name or "") for name in one.group.values()]
    )


_SUMS = """WITH calls AS (
    SELECT {groups} s.error IS NOT NULL AS failed, s.output <> [] AS answered,
        s.input_tokens, s.cached_input_tokens, s.output_tokens, s.reasoning_tokens, s.cost_usd,
        CAST(s.rest ->> '$.cache_write_tokens' AS BIGINT) AS cache_write_tokens,
        s.rest ->> '$.attributes.cost' AS why
    FROM spans s JOIN traces t ON t.id = s.trace_id
    WHERE t.source IN ('gateway', 'shadow') AND s.input IS NOT NULL
        AND ($project IS NULL OR t.project = $project)
        AND ($since IS NULL OR s.started >= $since) AND ($until IS NULL OR s.started < $until)
)
SELECT * EXCLUDE (failed, answered, input_tokens, cached_input_tokens, output_tokens,
        reasoning_tokens, cost_usd, cache_write_tokens, why),
    count(*) AS calls, count(*) FILTER (failed) AS failed,
    count(*) FILTER (input_tokens IS NOT NULL AND output_tokens IS NOT NULL) AS counted,
    sum(input_tokens)::BIGINT AS input_tokens,
    sum(cached_input_tokens)::BIGINT AS cached_input_tokens,
    sum(cache_write_tokens)::BIGINT AS cache_write_tokens,
    sum(output_tokens)::BIGINT AS output_tokens, sum(reasoning_tokens)::BIGINT AS reasoning_tokens,
    count(cost_usd) AS priced, sum(cost_usd) AS cost_usd,
    count(*) FILTER (answered AND cost_usd IS NULL) > 0 AS partial,
    mode(why) FILTER (answered AND cost_usd IS NULL) AS why
FROM calls GROUP BY ALL"""

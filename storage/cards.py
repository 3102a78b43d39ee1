"""Cards: one narrow row a trace, so that a list of a million is filtered without a join.

Enters the committer's transaction, with the ledger sequence that it writes; leaves the cards of
every trace that it touched: through the trace itself, a grade, or what somebody said. Invariant: a
card is a function of the other tables, and no card is older than what it is made of.
"""

from typing import TYPE_CHECKING

from flywheel.reviews import NAME, STANDING
from storage.verdicts import RULING, SETTLING, VERDICT, person, rewarded

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_SPOKEN_OF = """
WITH new AS (SELECT DISTINCT project, target, target_kind FROM feedback WHERE since = $sequence)
SELECT stands_for AS trace_id FROM cards JOIN new ON cards.project = new.project
    AND target_kind = 'conversation' AND conversation = target
UNION SELECT stands_for FROM cards JOIN new ON cards.project = new.project
    AND target_kind IN ('trace', 'episode') AND trace_id = target
UNION SELECT stands_for FROM cards JOIN new ON cards.project = new.project
    AND target_kind IN ('trace', 'episode') AND external_id = target
UNION SELECT stands_for FROM
    (SELECT project, stands_for, unnest(handles) AS handle FROM cards) AS one
    JOIN new ON one.project = new.project AND target_kind <> 'conversation' AND handle = target
"""
_TOUCHED = """
CREATE OR REPLACE TEMP TABLE touched AS
WITH found AS (
    SELECT id AS trace_id FROM traces WHERE since = $sequence
    UNION ALL SELECT trace_id FROM threads WHERE since = $sequence OR "until" = $sequence
    UNION ALL SELECT trace_id FROM grades WHERE since = $sequence
    {spoken}
), copied AS (SELECT id, duplicate_of FROM traces WHERE duplicate_of IS NOT NULL)
SELECT trace_id FROM found
UNION ALL SELECT duplicate_of FROM copied WHERE id IN (FROM found)
UNION ALL SELECT id FROM copied WHERE duplicate_of IN (FROM found)
"""
"""Some more than once, which costs less than to look."""
_ALL = "CREATE OR REPLACE TEMP TABLE touched AS SELECT id AS trace_id FROM traces"

_LATEST = "last({} ORDER BY coalesce(started, 0), id) FILTER (len(output) > 0)"
_HANDLES_OF = "list_sort(list_filter({}, lambda one: one IS NOT NULL))"
_CALLS = {
    "first_since": ("since", "min(since)"),
    "calls": ("(input IS NOT NULL)::BIGINT", "count(input)"),
    "failed": ("error IS NOT NULL", "bool_or(error IS NOT NULL)"),
    "model": ("CASE WHEN len(output) > 0 THEN coalesce(response_model, model) END",
              _LATEST.format("coalesce(response_model, model)")),
    "deployment": ("CASE WHEN input IS NOT NULL THEN deployment END",
                   "last(deployment ORDER BY coalesce(started, 0), id) "
                   "FILTER (input IS NOT NULL)"),
    "finish": ("CASE WHEN len(output) > 0 THEN finish_reasons[1] END",
               _LATEST.format("finish_reasons[1]")),
    "answered": ("coalesce(len(output) > 0, false)", "coalesce(bool_or(len(output) > 0), false)"),
    "input_tokens": ("CASE WHEN input IS NOT NULL THEN input_tokens END",
                     "CASE WHEN count(input) = count(input_tokens) THEN sum(input_tokens) END"),
    "output_tokens": ("CASE WHEN input IS NOT NULL THEN output_tokens END",
                      "CASE WHEN count(input) = count(output_tokens) THEN sum(output_tokens) END"),
    "handles": (_HANDLES_OF.format("[id, response, gen_ai, episode]"),
                _HANDLES_OF.format("flatten(list([id, response, gen_ai, episode]))")),
}  # fmt: skip
"""Of a trace of one span, and of one of several: most have one, and need no sorting."""


_OF_ONE, _OF_SEVERAL = (
    ", ".join(f"{both[which]} AS {name}" for name, both in _CALLS.items()) for which in (0, 1)
)


_GRADED = rewarded("FROM grades SEMI JOIN touched USING (trace_id)")
_UNGRADED = """SELECT NULL::VARCHAR AS trace_id, 0 AS graded, 0 AS ungiven, NULL::DOUBLE AS reward
    WHERE false"""
_REMADE = f"""
CREATE OR REPLACE TEMP TABLE remade AS
WITH counted AS (
    SELECT id AS counted_id, spans = 1 AS single FROM traces
    SEMI JOIN touched ON traces.id = touched.trace_id WHERE since >= $oldest
), told AS NOT MATERIALIZED (  -- JSON is read where it holds the name
    SELECT *,
        CASE WHEN contains(rest, '"response_id"')
            THEN rest ->> '$.attributes.response_id' END AS response,
        CASE WHEN contains(rest, '"gen_ai.response.id"')
            THEN rest ->> '$.attributes."gen_ai.response.id"' END AS gen_ai,
        CASE WHEN contains(rest, '"episode_id"') THEN coalesce(rest ->> '$.attributes.episode_id',
            rest ->> '$.attributes.metadata.episode_id') END AS episode
    FROM spans JOIN counted ON counted_id = trace_id
    WHERE copy_of IS NULL AND since >= $oldest
), called AS (
    SELECT trace_id, {_OF_ONE} FROM told WHERE single
    UNION ALL SELECT trace_id, {_OF_SEVERAL} FROM told WHERE NOT single GROUP BY trace_id
), sampled AS (
    SELECT trace_id, avg(list_avg(logprobs)) AS logprob
    FROM tokens SEMI JOIN touched USING (trace_id)
    WHERE choice = 0 AND len(logprobs) > 0 AND since >= $oldest GROUP BY trace_id
), rewarded AS (
    {{rewarded}}
)
SELECT traces.id AS trace_id, traces.since, coalesce(first_since, traces.since) AS first_since,
    project, origin, external_id, coalesce(conversation, threads.root) AS conversation, user_id,
    problem_id, run_id, fidelity,
    coalesce(duplicate_of, traces.id) AS stands_for, coalesce(handles, []) AS handles, started,
    ended, spans, coalesce(calls, 0) AS calls, model, deployment, nullif(finish, '') AS finish,
    coalesce(answered, false) AS answered, coalesce(failed, false) AS failed, input_tokens,
    output_tokens, logprob, reward, coalesce(ungiven, 0) AS ungiven, coalesce(graded, 0) AS graded
FROM (SELECT * FROM traces WHERE since >= $oldest) AS traces
SEMI JOIN touched ON traces.id = touched.trace_id
LEFT JOIN called ON called.trace_id = traces.id
LEFT JOIN sampled ON sampled.trace_id = traces.id
LEFT JOIN rewarded ON rewarded.trace_id = traces.id
LEFT JOIN threads ON threads.trace_id = traces.id AND "until" IS NULL
"""
_HEARD = """SELECT stands_for, feedback.rowid AS place FROM feedback JOIN {of} AS of
        ON of.project = feedback.project AND {key} = target WHERE target_kind IN {kinds}"""
_HANDLES = "(SELECT stands_for, project, unnest(handles) AS handle FROM remade)"
_SAID = f"""
CREATE OR REPLACE TEMP TABLE spoken AS
WITH keyed AS (
    {_HEARD.format(kinds="('trace', 'episode')", of="remade", key="trace_id")}
    UNION {_HEARD.format(kinds="('trace', 'episode')", of="remade", key="external_id")}
    UNION {_HEARD.format(kinds="('conversation')", of="remade", key="conversation")}
    UNION {_HEARD.format(kinds="('trace', 'span', 'episode')", of=_HANDLES, key="handle")}
), asked AS (
    SELECT rowid AS place, * FROM feedback WHERE rowid IN (SELECT place FROM keyed)
    QUALIFY row_number() OVER (PARTITION BY project, target, target_kind, name, said_by
                               ORDER BY said DESC, id DESC) = 1
), about AS (
    SELECT DISTINCT stands_for AS trace_id, asked.id, name, said, {person("said_by")} AS person,
        CASE WHEN name = '{NAME}' THEN {RULING} END AS ruling,
        CASE WHEN name = '{NAME}' THEN {SETTLING} END AS settles,
        contains(body, '"review"') AND (body ->> '$.attributes.review') IS NOT NULL AS of_review,
        CASE WHEN body ->> '$.kind' = 'boolean' THEN (body ->> '$.value') = 'true' END AS yes
    FROM asked JOIN keyed USING (place)
), reviewed AS (  -- a person's word on a copy is a word on what it is a copy of
    SELECT *, ruling = 'accepted' AS good FROM about WHERE name = '{NAME}'
    QUALIFY row_number() OVER (PARTITION BY trace_id, coalesce(person, id)
                               ORDER BY said DESC, id DESC) = 1
), judged AS (
    SELECT trace_id, list(person) FILTER (person IS NOT NULL) AS reviewers, {VERDICT} AS verdict
    FROM reviewed WHERE ruling IN {STANDING} GROUP BY trace_id
), told AS (
    SELECT trace_id, count(*) FILTER (NOT of_review) AS said,
        avg(yes::INTEGER) FILTER (NOT of_review) AS liked
    FROM about GROUP BY trace_id
)
SELECT told.*, reviewers, verdict FROM told LEFT JOIN judged USING (trace_id)
"""
_SILENT = """
CREATE OR REPLACE TEMP TABLE spoken (
    trace_id VARCHAR, said BIGINT, liked DOUBLE, reviewers VARCHAR[], verdict DOUBLE)
"""
_OLDEST = """
SELECT least($sequence, coalesce(min(first_since), $sequence)) FROM cards SEMI JOIN touched
    USING (trace_id)
"""
"""The sequence from which on the rows of all that was touched lie: what lies before is not read."""
_REPLACE = """
DELETE FROM cards WHERE trace_id IN (FROM touched);
INSERT INTO cards BY NAME
SELECT remade.*, coalesce(said, 0) AS said, liked, coalesce(reviewers, []) AS reviewers, verdict
FROM remade LEFT JOIN spoken USING (trace_id);
"""


def refresh(database: "DuckDBPyConnection", sequence: int) -> None:
    """Makes the cards anew of all that this transaction touched; of all, where there are none."""
    whole = _first_time(database)
    if whole:
        database.execute(_ALL)
    else:
        spoken = _any(database, "SELECT 1 FROM feedback WHERE since = $sequence", sequence)
        union = f"UNION ALL SELECT trace_id FROM ({_SPOKEN_OF})" if spoken else ""
        database.execute(_TOUCHED.format(spoken=union), {"sequence": sequence})
    if _any(database, "SELECT 1 FROM touched"):
        ((oldest,),) = database.execute(_OLDEST, {"sequence": sequence}).fetchall()
        earned = _GRADED if _any(database, "SELECT 1 FROM grades") else _UNGRADED
        remade = _REMADE.format(rewarded=earned)
        database.execute(remade, {"oldest": 0 if whole else oldest})
        database.execute(_SAID if _any(database, "SELECT 1 FROM feedback") else _SILENT)
        database.execute(_REPLACE)


def _first_time(database: "DuckDBPyConnection") -> bool:
    return not _any(database, "SELECT 1 FROM cards") and _any(database, "SELECT 1 FROM traces")


def _any(database: "DuckDBPyConnection", query: str, sequence: int | None = None) -> bool:
    values = {} if sequence is None else {"sequence": sequence}
    return bool(database.execute(f"{query} LIMIT 1", values).fetchall())

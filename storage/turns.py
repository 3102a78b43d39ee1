"""The turns of logged requests: what was said before each answer, as a key that others can meet.

Enters the committer's transaction, after its traces and spans; leaves a row for the answer that a
trace of one model call gave, and for each of the latest answers that its request repeats.
Invariant: requests with one history have one key, of the same project, source, user and named
conversation.
"""

from typing import TYPE_CHECKING

from storage.copies import RECORDED

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LOOKED_AT = 8
"""Answers in a request, the latest ones, that are looked for."""

_ID = 33
"""Characters of a message's id, with the comma behind it."""
_KEY = "md5_number_lower({})"
_ANSWER = "('0x' || left({}, 15))::BIGINT"
_ALONE = f"""
CREATE OR REPLACE TEMP TABLE alone AS
WITH one AS (
    SELECT id, started, spans = 1 AS single,
        concat_ws(chr(0), project, source, coalesce(user_id, ''), coalesce(conversation, ''), '')
            AS scope
    FROM traces WHERE since >= $least AND duplicate_of IS NULL AND origin IN {RECORDED}
), called AS NOT MATERIALIZED (
    SELECT trace_id, started, scope, single, input, output[1] AS output
    FROM (
        SELECT trace_id, input, output FROM spans
        WHERE since >= $oldest AND input IS NOT NULL AND copy_of IS NULL
    ) AS spans JOIN one ON one.id = spans.trace_id
), single AS (
    FROM called WHERE single
    UNION ALL SELECT trace_id, any_value(started), any_value(scope), false, any_value(input),
        any_value(output)
    FROM called WHERE NOT single GROUP BY trace_id HAVING count(*) = 1
)
SELECT trace_id, started, len(input) AS messages, scope || array_to_string(input, ',') AS said,
    length(scope) AS head, {_ANSWER.format("output")} AS answer
FROM single WHERE len(input) > 0
"""
_OWN = f"""
INSERT INTO turns SELECT trace_id, {_KEY.format("said")}, messages, true, answer, started
FROM alone WHERE answer IS NOT NULL
"""
_BEFORE = _KEY.format(f"left(said, head + {_ID} * place - 1)")
_REPEATS = f"""
    SELECT * EXCLUDE (answer), {_ANSWER.format(f"substr(said, head + {_ID} * place + 1)")} AS answer
    FROM (SELECT *, unnest(range(1, messages)) AS place FROM alone)
"""
_OURS = "(SELECT key FROM messages WHERE role = 'assistant')"
_REPEATED = f"""
INSERT INTO turns SELECT trace_id, {_BEFORE}, place, false, answer, started
FROM ({_REPEATS} WHERE messages BETWEEN 3 AND {LOOKED_AT + 1})
SEMI JOIN {_OURS} AS ours ON answer = ours.key
"""
_REPEATED_OF_LONG = f"""
INSERT INTO turns
WITH spoken AS (
    SELECT trace_id, place, answer FROM ({_REPEATS} WHERE messages > {LOOKED_AT + 1})
    SEMI JOIN {_OURS} AS ours ON answer = ours.key
    QUALIFY row_number() OVER (PARTITION BY trace_id ORDER BY place DESC) <= {LOOKED_AT}
)
SELECT trace_id, {_BEFORE}, place, false, spoken.answer, started
FROM spoken JOIN alone USING (trace_id)
"""
_WERE = """
CREATE OR REPLACE TEMP TABLE were AS
SELECT trace_id, key, own FROM turns SEMI JOIN news ON turns.trace_id = news.id
"""
_MET = """
SELECT 1 FROM turns AS new JOIN turns AS other ON new.key = other.key AND new.own <> other.own
WHERE new.trace_id IN (FROM news) LIMIT 1
"""
"""A request repeats an answer that is there."""
_BEGUN = "INSERT INTO turns VALUES ('', 0, 0, true, 0, NULL)"
"""A row that stands for nobody: what was there before this table was has been looked at."""


def renew(database: "DuckDBPyConnection", sequence: int) -> bool:
    """The turns of this transaction's traces, in place of older ones; whether any thread may be
    another one for it."""
    run = database.execute
    first = not run("SELECT 1 FROM turns LIMIT 1").fetchall()
    if first:
        run(_BEGUN)
    least = 0 if first else sequence
    run("CREATE OR REPLACE TEMP TABLE news AS SELECT id FROM traces WHERE since >= ?", [least])
    ((oldest,),) = run(
        "SELECT least(?, coalesce(min(first_since), ?)) FROM cards "
        "SEMI JOIN news ON cards.trace_id = news.id",
        [least, least],
    ).fetchall()
    run(_ALONE, {"least": least, "oldest": oldest})
    run(_WERE)
    run("CREATE OR REPLACE TEMP TABLE changed AS SELECT DISTINCT key FROM were")
    run("CREATE OR REPLACE TEMP TABLE left_alone AS SELECT trace_id FROM were WHERE NOT own")
    if known := bool(run("SELECT 1 FROM changed LIMIT 1").fetchall()):
        run("DELETE FROM turns WHERE trace_id IN (SELECT id FROM news)")
    run(_OWN)
    ((most,),) = run("SELECT coalesce(max(messages), 0) FROM alone").fetchall()
    if most > 2:
        run(_REPEATED)
    if most > LOOKED_AT + 1:
        run(_REPEATED_OF_LONG)
    if not known and not run(_MET).fetchall():
        return False  # what comes for the first time leaves no thread
    run("INSERT INTO changed SELECT DISTINCT key FROM turns SEMI JOIN news ON trace_id = news.id")
    going_on = "SELECT 1 FROM turns SEMI JOIN changed USING (key) WHERE NOT own LIMIT 1"
    return bool(run(going_on).fetchall() or run("SELECT 1 FROM left_alone LIMIT 1").fetchall())

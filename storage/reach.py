"""Whose data it is, followed through the store: every row that stands for what is to be erased.

Enter who or what was asked for; leave the ids of traces (with their copies under other ids, and
what was sampled on problems that were mined from them), problems, feedback and messages that nobody
else said. A copy that the store knows to be another person's is theirs and stays.
"""

from typing import TYPE_CHECKING, Any, Literal

from flywheel.records import Record

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Kind = Literal["user", "tenant", "conversation", "trace", "retention"]


class Asked(Record, frozen=True, kw_only=True):
    kind: Kind
    value: str = ""
    """Who or which; "" of retention."""
    project: str | None = None
    """None = in all projects of the home."""
    ids: tuple[str, ...] = ()
    """Of retention: the traces whose time is over."""


class Reached(Record, frozen=True, kw_only=True):
    traces: tuple[str, ...]
    problems: tuple[str, ...]
    feedback: tuple[str, ...]
    messages: tuple[str, ...]
    """Those that only these traces hold."""
    toolsets: tuple[str, ...]
    spans: int
    grades: int
    projects: tuple[str, ...]


_OWN = {"user": "user_id", "tenant": "tenant", "conversation": "conversation"}
_SEED = """
CREATE OR REPLACE TEMP TABLE gone AS
SELECT DISTINCT id, project FROM all_traces WHERE ({wanted}) {within}
"""
_HANDLED = """id = $value OR external_id = $value
    OR id IN (SELECT trace_id FROM cards WHERE list_contains(handles, $value))"""
_SAME_CONVERSATION = """
INSERT INTO gone SELECT DISTINCT id, project FROM all_traces
WHERE conversation IS NOT NULL AND {mine} AND id NOT IN (SELECT id FROM gone)
    AND (project, conversation) IN (SELECT (project, conversation) FROM all_traces
        WHERE conversation IS NOT NULL AND id IN (SELECT id FROM gone))
"""
_COPIES = """
INSERT INTO gone SELECT DISTINCT id, project FROM traces WHERE {mine}
    AND id NOT IN (SELECT id FROM gone) AND (
        duplicate_of IN (SELECT id FROM gone)
        OR id IN (SELECT duplicate_of FROM traces WHERE id IN (SELECT id FROM gone))
        OR duplicate_of IN (SELECT duplicate_of FROM traces WHERE id IN (SELECT id FROM gone)))
"""
_PROBLEMS = """
CREATE OR REPLACE TEMP TABLE gone_problems AS SELECT id FROM problems
WHERE trace_id IN (SELECT id FROM gone) {also}
"""
_SAMPLED = """
INSERT INTO gone SELECT DISTINCT id, project FROM all_traces
WHERE problem_id IN (SELECT id FROM gone_problems) AND id NOT IN (SELECT id FROM gone)
"""
_FEEDBACK = """
CREATE OR REPLACE TEMP TABLE gone_feedback AS
WITH keys AS (
    SELECT project, id AS key FROM all_traces WHERE id IN (SELECT id FROM gone)
    UNION SELECT project, external_id FROM all_traces WHERE id IN (SELECT id FROM gone)
    UNION SELECT project, unnest(handles) FROM cards WHERE trace_id IN (SELECT id FROM gone)
), talks AS (
    SELECT project, conversation AS key FROM all_traces
    WHERE conversation IS NOT NULL AND id IN (SELECT id FROM gone)
    EXCEPT SELECT project, conversation FROM traces WHERE id NOT IN (SELECT id FROM gone)
)
SELECT id FROM feedback WHERE {said_by}
    (target_kind <> 'conversation' AND (project, target) IN (SELECT (project, key) FROM keys))
    OR (target_kind = 'conversation' AND (project, target) IN (SELECT (project, key) FROM talks))
    OR (body ->> '$.kind' = 'preference' AND (
        (project, body ->> '$.value.chosen') IN (SELECT (project, key) FROM keys)
        OR (project, body ->> '$.value.rejected') IN (SELECT (project, key) FROM keys)))
"""
_SPANS = """
CREATE OR REPLACE TEMP VIEW all_spans AS
SELECT trace_id, id, input, output, tools, rest, error, name FROM spans
UNION ALL SELECT trace_id, id, input, output, tools, rest, error, name FROM spans_history
"""
_MESSAGES = """
CREATE OR REPLACE TEMP TABLE gone_messages AS
WITH held AS (
    SELECT trace_id, unnest(list_concat(coalesce(input, []), coalesce(output, []))) AS id
    FROM all_spans
)
SELECT id FROM held GROUP BY id HAVING bool_and(trace_id IN (SELECT id FROM gone))
"""
_TOOLSETS = """
CREATE OR REPLACE TEMP TABLE gone_toolsets AS
SELECT tools AS id FROM all_spans WHERE tools IS NOT NULL GROUP BY tools
HAVING bool_and(trace_id IN (SELECT id FROM gone))
"""


def reach(database: "DuckDBPyConnection", asked: Asked) -> Reached:
    """Leaves the temporary tables gone, gone_problems, gone_feedback, gone_messages, gone_toolsets
    and the view all_spans in `database`."""
    value = {"value": asked.value}
    _seed(database, asked)
    mine = _mine(asked)
    if asked.kind in ("user", "tenant"):
        database.execute(_SAME_CONVERSATION.format(mine=mine), value)
    owner = _OWN.get(asked.kind)
    everywhere = owner in ("user_id", "conversation") and asked.project is None
    also = f"OR {owner} = $value" if everywhere else ""
    given = value if also else {}
    known = -1
    while known != (known := _count(database, "gone")):
        database.execute(_COPIES.format(mine=mine), value if "$value" in mine else {})
        database.execute(_PROBLEMS.format(also=also), given)
        database.execute(_SAMPLED)
    said_by = "(said_by = $value) OR" if asked.kind == "user" else ""
    database.execute(_FEEDBACK.format(said_by=said_by), value if said_by else {})
    for query in (_SPANS, _MESSAGES, _TOOLSETS):
        database.execute(query)
    return Reached(
        traces=_ids(database, "gone"),
        problems=_ids(database, "gone_problems"),
        feedback=_ids(database, "gone_feedback"),
        messages=_ids(database, "gone_messages"),
        toolsets=_ids(database, "gone_toolsets"),
        spans=_count(database, "spans WHERE trace_id IN (SELECT id FROM gone)"),
        grades=_count(
            database,
            "grades WHERE trace_id IN (SELECT id FROM gone) "
            "OR problem_id IN (SELECT id FROM gone_problems)",
        ),
        projects=tuple(
            one
            for (one,) in database.execute(
                "SELECT DISTINCT project FROM gone ORDER BY 1"
            ).fetchall()
        ),
    )


def _seed(database: "DuckDBPyConnection", asked: Asked) -> None:
    given: dict[str, Any] = {"value": asked.value}
    if asked.kind == "retention":
        wanted, given = "id IN (SELECT unnest($ids))", {"ids": list(asked.ids)}
    elif asked.kind == "trace":
        wanted = _HANDLED
    else:
        wanted = f"{_OWN[asked.kind]} = $value"
    within = "AND project = $project" if asked.project is not None else ""
    if asked.project is not None:
        given["project"] = asked.project
    database.execute(_SEED.format(wanted=wanted, within=within), given)


def _mine(asked: Asked) -> str:
    """The condition that a row is not known to be somebody else's."""
    if asked.kind in ("user", "tenant"):
        column = _OWN[asked.kind]
        return f"({column} IS NULL OR {column} = $value)"
    return "(user_id IS NULL OR user_id IN (SELECT user_id FROM all_traces JOIN gone USING (id)))"


def _ids(database: "DuckDBPyConnection", table: str) -> tuple[str, ...]:
    return tuple(
        one for (one,) in database.execute(f"SELECT id FROM {table} ORDER BY 1").fetchall()
    )


def _count(database: "DuckDBPyConnection", what: str) -> int:
    ((number,),) = database.execute(f"SELECT count(*) FROM {what}").fetchall()
    return int(number)

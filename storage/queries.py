"""What the store knows, read in short opens: nothing here holds the database longer than one query.

Enter a home and what is wanted; leave records as the committer merged them. A snapshot is a ledger
sequence: readers of one see traces and feedback exactly as they stood then, whatever came since.
Traces that are copies of others (see `storage.copies`) are left out unless asked for by id.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.data_section import LabelsSection
from flywheel.home import Home
from flywheel.ids import digest
from flywheel.records import Feedback, Grade, Problem, Record, Trace
from flywheel.reviews import counting, labelled, settled
from storage import entries
from storage.copies import RECORDED
from storage.database import reading
from storage.lineage import lineage as lineage
from storage.merge import counted_once
from storage.rows import load, named, seen_as, table_of
from storage.threads import conversations

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


_FIRST, _LEAST, _BYTES = 2000, 100, 32_000_000
"""Traces in the first list; of later ones at least, and what they may take, encoded."""


class Snapshot(Record, frozen=True, kw_only=True):
    sequence: int
    """The last transaction that it sees; 0 = nothing."""
    digest: str
    """Of the project's recorded traces and effective feedback. Sampled answers do not enter."""


def snapshot(home: Home, project: str, *, at: int | None = None) -> Snapshot:
    """What there is now, to read from for as long as a turn takes.

    Args:
        at: nanoseconds; traces that must be gone by then do not enter the digest.
    """
    with reading(home) as database:
        if database is None:
            return Snapshot(sequence=0, digest=digest([], []))
        sequence = _one(database, "SELECT coalesce(max(sequence), 0) FROM segments")
        traces = database.execute(
            "SELECT id, digest FROM traces WHERE project = $project AND duplicate_of IS NULL "
            f"AND origin IN {RECORDED} AND ($at IS NULL OR expires IS NULL OR expires > $at) "
            "ORDER BY id",
            {"project": project, "at": at},
        ).fetchall()
        feedback = database.execute(
            f"SELECT id FROM ({_EFFECTIVE}) WHERE project = $project ORDER BY id",
            {"sequence": sequence, "project": project},
        ).fetchall()
    return Snapshot(sequence=sequence, digest=digest(traces, feedback))


def traces(
    home: Home,
    *,
    ids: Collection[str] | None = None,
    project: str | None = None,
    origin: str | Sequence[str] | None = None,
    run_id: str | None = None,
    snapshot: Snapshot | int | None = None,
    problem_ids: Collection[str] | None = None,
    since: int | None = None,
    until: int | None = None,
    batch: int = 2000,
) -> Iterator[list[Trace]]:
    """Traces by time and id, in lists of up to `batch`. Conditions that are None do not narrow.

    Args:
        batch: each looks its ids up in the whole tables, so of many traces large ones cost half;
            where traces are long they are shorter.
        since, until: nanoseconds; of a trace's first span, `until` not included. A trace without a
            time is at neither.
    """
    sequence = _sequence(snapshot)
    conditions, values = _narrowed(
        project=("project = $project", project),
        origins=("origin IN (SELECT unnest($origins))",
                 [origin] if isinstance(origin, str) else origin),
        run_id=("run_id = $run_id", run_id),
        ids=("id IN (SELECT unnest($ids))", ids),
        problem_ids=("problem_id IN (SELECT unnest($problem_ids))", problem_ids),
        since=("started >= $since", since),
        until=("started < $until", until),
    )  # fmt: skip
    if ids is None:
        conditions.append("duplicate_of IS NULL")
    with reading(home) as database:
        if database is None:
            return
        wanted = [
            one
            for (one,) in database.execute(
                f"SELECT id FROM ({_standing('traces', sequence)}) "
                f"WHERE {' AND '.join(conditions) or 'true'} ORDER BY started NULLS FIRST, id",
                values,
            ).fetchall()
        ]
    start, size = 0, min(batch, _FIRST)
    while start < len(wanted):
        with reading(home) as database:
            if database is None:
                return
            found = load(database, wanted[start : start + size], sequence=sequence)
            once = [counted_once(one, copied) for one, copied, _ in found]
            once = conversations(database, once, sequence=sequence)
        start, size = start + size, _next(once, batch)
        yield once


def _next(last: Sequence[Trace], most: int) -> int:
    """How many traces come next, so that they fit in memory: by what every 64th of these has."""
    some = last[::64]
    mean = sum(len(msgspec.json.encode(one)) for one in some) / max(len(some), 1)
    return min(most, max(_LEAST, int(_BYTES / max(mean, 1))))


def _narrowed(**asked: tuple[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The conditions whose value is not None, and the values by the names they have there."""
    given = {name: pair for name, pair in asked.items() if pair[1] is not None}
    conditions = [condition for condition, _ in given.values()]
    values = {
        name: value if isinstance(value, str | int) else list(value)
        for name, (_, value) in given.items()
    }
    return conditions, values


def feedback_for(
    home: Home,
    traces: Sequence[Trace],
    *,
    snapshot: Snapshot | int | None = None,
    copied: bool = True,
    labels: LabelsSection | None = None,
) -> dict[str, list[Feedback]]:
    """What people said of these traces, oldest first, without what they took back.

    A target is a trace's id (ours or the sender's), a span's id (the response's), or the
    conversation's. What was said of a copy counts for the trace that stands for it.

    Args:
        copied: False = the caller knows that none of them has copies.
        labels: reviews that are not the label by these are left out too. None = all are there.

    Returns: trace id -> feedback; traces without any are left out.
    """
    sequence = _sequence(snapshot)
    keys = {key for trace in traces for key in _keys(trace)}
    with reading(home) as database:
        if database is None or not traces:
            return {}
        if copied:
            keys.update(_keys_of_copies(database, [trace.id for trace in traces]))
        shape = dict.fromkeys(("in_project", "kind", "key", "trace_id"), "VARCHAR")
        with seen_as(database, "keys", table_of(shape, sorted(keys))):
            rows = database.execute(
                "SELECT DISTINCT keys.trace_id, said.said, said.id, said.body FROM "
                f"({_EFFECTIVE.replace('FROM feedback', _ONLY_ASKED)}) said JOIN keys "
                "ON project = in_project AND target = key AND target_kind = kind "
                "ORDER BY said.said, said.id",
                {"sequence": _LAST if sequence is None else sequence},
            ).fetchall()
    found: dict[str, list[Feedback]] = {}
    for trace_id, _, _, body in rows:
        found.setdefault(trace_id, []).append(entries.record_of("feedback", {"body": body}))
    if labels is None:
        return {trace_id: settled(said) for trace_id, said in found.items()}
    many, wait = labels.reviewers, labels.adjudicate
    return {
        trace_id: counting(settled(said), reviewers=many, adjudicate=wait)
        for trace_id, said in found.items()
    }


def grades(
    home: Home,
    *,
    trace_ids: Collection[str] | None = None,
    run_id: str | None = None,
    project: str | None = None,
    grader: str | None = None,
    labels: LabelsSection | None = None,
    until: int | None = None,
) -> list[Grade]:
    """The latest grade of each trace (or span) by each reward, by whichever grader gave it; of the
    verdicts of several reviewers the one that they come to.

    Args:
        run_id, project: of the traces.
        grader: only this one's.
        labels: what a label of several reviewers is, by the project's file. None = any one's word.
        until: the ledger's sequence after which nothing is seen; None = all. What the same grader
            gave anew is seen only since then.
    """
    labels = labels or LabelsSection()
    conditions = {
        "trace_id IN (SELECT unnest($trace_ids))": None if trace_ids is None else list(trace_ids),
        "trace_id IN (SELECT id FROM traces WHERE run_id = $run_id)": run_id,
        "trace_id IN (SELECT id FROM traces WHERE project = $project)": project,
        "grader = $grader": grader,
        "since <= $until": until,
    }
    names = ("trace_ids", "run_id", "project", "grader", "until")
    given = {
        name: value
        for name, value in zip(names, conditions.values(), strict=True)
        if value is not None
    }
    where = " AND ".join(one for one, value in conditions.items() if value is not None) or "true"
    with reading(home) as database:
        if database is None:
            return []
        rows = named(
            database,
            f"SELECT * FROM grades WHERE {where} QUALIFY row_number() OVER (PARTITION BY "
            "trace_id, span_id, reward, CASE WHEN kind = 'human' THEN grader END "
            "ORDER BY given DESC, since DESC, digest DESC) = 1 "
            "ORDER BY trace_id, span_id NULLS FIRST, reward, grader",
            given,
        )
    found = [entries.record_of("grade", row) for row in rows]
    return [
        grade
        for _, each in itertools.groupby(found, key=lambda one: one.trace_id)
        for grade in labelled(list(each), reviewers=labels.reviewers, adjudicate=labels.adjudicate)
    ]


def problems(
    home: Home,
    project_or_environment: str | None = None,
    *,
    split: str | None = None,
    ids: Collection[str] | None = None,
) -> list[Problem]:
    """Problems by id.

    Args:
        project_or_environment: an environment's name, or the project whose traces they come from.
    """
    conditions = {
        "(environment = $name OR trace_id IN (SELECT id FROM traces WHERE project = $name))": (
            project_or_environment
        ),
        "split = $split": split,
        "id IN (SELECT unnest($ids))": None if ids is None else list(ids),
    }
    return _bodies(home, "problem", conditions, ("name", "split", "ids"))


def records(home: Home, kind: str, *, project: str | None = None) -> list[Any]:
    """All records of a kind in the order they came: dataset, run, checkpoint, evaluation, decision,
    deployment, calibration (or problem, grade, feedback)."""
    owner = (
        "run_id IN (SELECT id FROM runs WHERE project = $project)"
        if kind == "checkpoint"
        else "project = $project"
    )
    return _bodies(home, kind, {owner: project}, ("project",))


def sampled_problems(home: Home, project: str, *, before_run: str | None = None) -> frozenset[str]:
    """Problems that rollouts of the project answered, `before_run`'s own apart."""
    with reading(home) as database:
        if database is None:
            return frozenset()
        rows = database.execute(
            "SELECT DISTINCT problem_id FROM traces WHERE project = ? AND origin = 'rollout' "
            "AND problem_id IS NOT NULL AND run_id IS DISTINCT FROM ?",
            [project, before_run],
        ).fetchall()
    return frozenset(one for (one,) in rows)


def committed(home: Home, name: str, *, wait_s: float = 120.0) -> bool:
    """Whether the ledger has a segment of this name."""
    with reading(home, wait_s=wait_s) as database:
        if database is None:
            return False
        found = database.execute("SELECT 1 FROM segments WHERE name = ?", [name]).fetchall()
    return bool(found)


def counts(home: Home, project: str) -> dict[str, int]:
    """How much there is of a project. Recorded traces, their spans and tokens are counted once,
    whatever copies came; token sums are over the calls whose usage is known."""
    with reading(home) as database:
        if database is None:
            return {}
        found: dict[str, int] = {}
        for query in _COUNTS:
            for row in named(database, query, {"project": project}):
                found.update({name: int(value) for name, value in row.items() if value is not None})
    return found


_COUNTS = (
    f"""SELECT count(*) FILTER (duplicate_of IS NULL AND origin IN {RECORDED}) AS traces,
        count(*) FILTER (duplicate_of IS NOT NULL) AS copies,
        count(*) FILTER (origin = 'rollout') AS rollouts,
        count(*) FILTER (origin = 'evaluation') AS evaluations,
        count(*) FILTER (incomplete) AS incomplete,
        count(*) FILTER (fidelity = 'trainable') AS trainable,
        count(*) FILTER (fidelity = 'renderable') AS renderable,
        count(*) FILTER (fidelity = 'view_only') AS view_only
        FROM traces WHERE project = $project""",
    f"""SELECT count(*) AS spans, count(input) AS calls,
        count(*) FILTER (input_tokens IS NOT NULL OR output_tokens IS NOT NULL)
            AS calls_with_usage,
        sum(input_tokens) AS input_tokens, sum(cached_input_tokens) AS cached_input_tokens,
        sum(output_tokens) AS output_tokens
        FROM spans WHERE copy_of IS NULL AND trace_id IN (SELECT id FROM traces
        WHERE project = $project AND duplicate_of IS NULL AND origin IN {RECORDED})""",
    """SELECT count(*) AS grades FROM grades
        WHERE trace_id IN (SELECT id FROM traces WHERE project = $project)""",
    "SELECT count(*) AS feedback FROM feedback WHERE project = $project",
    """SELECT count(*) AS problems FROM problems WHERE trace_id IN (SELECT id FROM traces
        WHERE project = $project) OR environment = $project""",
    "SELECT count(*) AS datasets FROM datasets WHERE project = $project",
    "SELECT count(*) AS runs FROM runs WHERE project = $project",
    "SELECT count(*) AS deployments FROM deployments WHERE project = $project",
)

_LAST = (1 << 62) - 1
_EFFECTIVE = """SELECT * FROM feedback WHERE since <= $sequence
    QUALIFY row_number() OVER (PARTITION BY project, target, target_kind, name, said_by
                               ORDER BY said DESC, id DESC) = 1"""
_ONLY_ASKED = "FROM (SELECT * FROM feedback WHERE target IN (SELECT key FROM keys))"


def _standing(table: str, sequence: int | None) -> str:
    """`table` as it stands, or as it stood."""
    if sequence is None:
        return f"SELECT * FROM {table}"
    at = int(sequence)
    return f'SELECT * FROM all_{table} WHERE since <= {at} AND ("until" IS NULL OR "until" > {at})'


def _sequence(snapshot: Snapshot | int | None) -> int | None:
    return snapshot.sequence if isinstance(snapshot, Snapshot) else snapshot


def _keys(trace: Trace) -> Iterator[tuple[str, str, str, str]]:
    """(project, target kind, target, trace id) of all that a sender may mean this trace by."""
    spans = [span.id for span in trace.spans]
    for span in trace.spans:
        named_so = (span.attributes.get("response_id"), span.attributes.get("gen_ai.response.id"))
        spans += [one for one in named_so if isinstance(one, str)]
    held = [trace.attributes, *(span.attributes for span in trace.spans)]
    episodes = map(_episode, held)
    by_kind = {
        "trace": (trace.id, trace.external_id, *spans),
        "episode": (trace.id, trace.external_id, *filter(None, episodes)),
        "span": spans,
        "conversation": [trace.conversation] if trace.conversation is not None else [],
    }
    for kind, targets in by_kind.items():
        for target in targets:
            yield trace.project, kind, target, trace.id


def _episode(attributes: dict[str, Any]) -> str | None:
    """The caller's own id of the episode that a trace or span is a part of."""
    said, own = attributes.get("metadata"), attributes.get("episode_id")
    named = own or (said.get("episode_id") if isinstance(said, dict) else None)
    return named if isinstance(named, str) else None


def _keys_of_copies(
    database: "DuckDBPyConnection", ids: list[str]
) -> Iterator[tuple[str, str, str, str]]:
    rows = database.execute(
        "SELECT project, trace_id, external_id, conversation, stands_for, handles FROM cards "
        "WHERE stands_for IN (SELECT unnest($ids)) AND stands_for <> trace_id",
        {"ids": ids},
    ).fetchall()
    for project, copy, external_id, conversation, original, spans in rows:
        for target in (copy, external_id, *(spans or ())):
            yield project, "trace", target, original
            yield project, "episode", target, original
        for target in spans or ():
            yield project, "span", target, original
        if conversation is not None:
            yield project, "conversation", conversation, original


def _bodies(home: Home, kind: str, conditions: dict[str, Any], names: tuple[str, ...]) -> list[Any]:
    table = entries.TABLES[kind].name
    values = dict(zip(names, conditions.values(), strict=True))
    where = " AND ".join(one for one, value in conditions.items() if value is not None) or "true"
    with reading(home) as database:
        if database is None:
            return []
        rows = named(
            database,
            f"SELECT * FROM {table} WHERE {where} ORDER BY since, id",
            {name: value for name, value in values.items() if value is not None},
        )
    return [entries.record_of(kind, row) for row in rows]


def _one(database: "DuckDBPyConnection", query: str) -> int:
    ((value,),) = database.execute(query).fetchall()
    return int(value)

"""What the store knows, read in short opens: nothing here holds the database longer than one query.

Enter a home and what is wanted; leave records as the committer merged them. A snapshot is a ledger
sequence: readers of one see traces and feedback exactly as they stood then, whatever came since.
Traces that are copies of others (see `storage.copies`) are left out unless asked for by id.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from flywheel.home import Home
from flywheel.records import Problem, Trace
from storage import entries
from storage.copies import RECORDED
from storage.database import reading
from storage.merge import counted_once
from storage.rows import load, named, narrowed
from storage.snapshots import Snapshot, sequence_of, standing
from storage.threads import conversations

_FIRST, _LEAST, _BYTES = 2000, 100, 32_000_000
"""Traces in the first list; of later ones at least, and what they may take, encoded."""


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
    sequence = sequence_of(snapshot)
    conditions, values = narrowed(
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
                f"SELECT id FROM ({standing('traces', sequence)}) "
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
    named_so = "environment = $name OR trace_id IN (SELECT id FROM traces WHERE project = $name)"
    return _bodies(
        home,
        "problem",
        name=(f"({named_so})", project_or_environment),
        split=("split = $split", split),
        ids=("id IN (SELECT unnest($ids))", ids),
    )


def records(home: Home, kind: str, *, project: str | None = None) -> list[Any]:
    """All records of a kind in the order they came: dataset, run, checkpoint, evaluation, decision,
    deployment, calibration (or problem, grade, feedback)."""
    owner = (
        "run_id IN (SELECT id FROM runs WHERE project = $project)"
        if kind == "checkpoint"
        else "project = $project"
    )
    return _bodies(home, kind, project=(owner, project))


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


def _bodies(home: Home, kind: str, **asked: tuple[str, Any]) -> list[Any]:
    conditions, values = narrowed(**asked)
    where = " AND ".join(conditions) or "true"
    query = f"SELECT * FROM {entries.TABLES[kind].name} WHERE {where} ORDER BY since, id"
    with reading(home) as database:
        rows = [] if database is None else named(database, query, values)
    return [entries.record_of(kind, row) for row in rows]

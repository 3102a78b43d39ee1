"""What was said of traces, and what they were graded: each as it stands, of several people what
they come to.

Enter a home and which traces; leave feedback and grades. What was taken back or superseded is not
among them.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flywheel.data_section import LabelsSection
from flywheel.home import Home
from flywheel.records import Feedback, Grade, Trace
from flywheel.reviews import counting, labelled, settled
from storage import entries
from storage.database import reading
from storage.rows import named, narrowed, seen_as, table_of
from storage.snapshots import EFFECTIVE, Snapshot, sequence_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_LAST = (1 << 62) - 1
_ONLY_ASKED = "FROM (SELECT * FROM feedback WHERE target IN (SELECT key FROM keys))"


_LATEST = """SELECT * FROM grades WHERE {where} QUALIFY row_number() OVER (
        PARTITION BY trace_id, span_id, reward, CASE WHEN kind = 'human' THEN grader END
        ORDER BY given DESC, since DESC, digest DESC
    ) = 1 ORDER BY trace_id, span_id NULLS FIRST, reward, grader"""
"""Of each reward the latest grade; of reviewers each one's."""


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
    sequence = sequence_of(snapshot)
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
                f"({EFFECTIVE.replace('FROM feedback', _ONLY_ASKED)}) said JOIN keys "
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
    conditions, values = narrowed(
        trace_ids=("trace_id IN (SELECT unnest($trace_ids))", trace_ids),
        run_id=("trace_id IN (SELECT id FROM traces WHERE run_id = $run_id)", run_id),
        project=("trace_id IN (SELECT id FROM traces WHERE project = $project)", project),
        grader=("grader = $grader", grader),
        until=("since <= $until", until),
    )
    query = _LATEST.format(where=" AND ".join(conditions) or "true")
    with reading(home) as database:
        rows = [] if database is None else named(database, query, values)
    found = [entries.record_of("grade", row) for row in rows]
    return [
        grade
        for _, each in itertools.groupby(found, key=lambda one: one.trace_id)
        for grade in labelled(list(each), reviewers=labels.reviewers, adjudicate=labels.adjudicate)
    ]


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

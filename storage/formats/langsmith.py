"""LangSmith runs: one run a row, {post: […], patch: […]} batches, run outputs alone, and feedback.

A run is told in parts, begun by a post and ended by a patch, in whatever order and file they come:
each is a part of one span. Runs of one trace_id are one trace. Invariant: what a part does not say
is unknown to it, so that a late post never unsays an answer.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Feedback, Span, Trace, trace_id

from .feedback import kind_of
from .langsmith_run import read_run, run_id
from .messages import name_of
from .parsed import Context, Parsed
from .times import nanoseconds

SOURCE = "import:langsmith"

_RUN_KEYS = ("dotted_order", "parent_run_id", "run_type")
_FEEDBACK = frozenset(("run_id", "trace_id", "key", "score", "value", "created_at", "user_id"))


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict):
        return False
    if any(isinstance(sample.get(key), list) for key in ("post", "patch")):
        return not sample.keys() - {"post", "patch"}
    if isinstance(sample.get("generations"), list):
        return True
    if "run_id" in sample and "key" in sample and ("score" in sample or "value" in sample):
        return True
    return ("trace_id" in sample or "id" in sample) and any(key in sample for key in _RUN_KEYS)


def read(row: dict[str, Any], context: Context) -> Parsed:
    if "key" in row and "run_id" in row:
        return Parsed(feedback=[_feedback(row, context)])
    if "generations" in row:
        said = digest(row)
        row = {"id": said, "trace_id": said, "run_type": "llm", "outputs": row}
    if "post" not in row and "patch" not in row:
        return _runs([("post", row)], context)
    runs: list[tuple[str, Any]] = []
    for verb in ("post", "patch"):
        held = row.get(verb)
        runs += [(verb, one) for one in (held if isinstance(held, list) else ())]
    return _runs(runs, context)


def _runs(runs: list[tuple[str, Any]], context: Context) -> Parsed:
    rest = context.rest()
    parsed = Parsed(unmapped=rest.counts)
    spans: dict[str, list[Span]] = {}
    facts: dict[str, dict[str, str]] = {}
    kinds = {
        run_id(one): one["run_type"]
        for _, one in runs
        if isinstance(one, dict) and isinstance(one.get("run_type"), str)
    }
    for at, (verb, one) in enumerate(runs):
        try:
            if not isinstance(one, dict):
                raise BadRecord(f"is {name_of(one)}, not a run")
            external, span, said = read_run(verb, one, kinds.get(run_id(one)), rest)
        except BadRecord as error:
            if len(runs) == 1:
                raise
            rest.take()
            place = f"{verb}[{at}].{error.field or ''}".rstrip(".")
            parsed.rejects.append(BadRecord(error.reason, field=place))
            continue
        spans.setdefault(external, []).append(span)
        facts.setdefault(external, {}).update(said)
    for external, found in spans.items():
        parsed.traces.append(
            Trace(
                id=trace_id(context.project, SOURCE, external),
                project=context.project,
                source=SOURCE,
                external_id=external,
                origin="import",
                spans=tuple(found),
                conversation=facts[external].get("conversation"),
                user=facts[external].get("user"),
                raw=context.raw,
            )
        )
    return parsed


def _feedback(row: dict[str, Any], context: Context) -> Feedback:
    run, key = row["run_id"], row["key"]
    if not isinstance(run, str) or not isinstance(key, str):
        raise BadRecord("is no id", field="run_id")
    value = row.get("value") if row.get("value") is not None else row.get("score")
    others = {name: row[name] for name in row.keys() - _FEEDBACK if row[name] not in (None, {}, "")}
    if row.get("value") is not None and row.get("score") is not None:
        others["score"] = row["score"]
    correction = row.get("correction")
    said = row.get("user_id")
    return Feedback(
        project=context.project,
        target=run,
        target_kind="span",
        name=key,
        value=value if value is not None else correction,
        kind="demonstration" if value is None and correction is not None else kind_of(value),
        by=said if isinstance(said, str) else None,
        at=nanoseconds(row.get("created_at")) or 0,
        attributes=others,
    )

"""The rows of every record that is not a trace: grades, feedback, problems, and what lineage is of.

Enters a record; leaves one row of its kind's table, and which of two records of one id stands. A
grade's and a feedback's rule looks at content alone. Of the others the later commit stands, except
that what it does not know keeps its earlier value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from flywheel.ids import canonical, digest
from flywheel.lineage import (
    Calibration,
    Checkpoint,
    Dataset,
    Decision,
    Deployment,
    Erasure,
    Evaluation,
    Mark,
    Run,
)
from flywheel.records import Feedback, Grade, Problem
from storage.envelope import KINDS, identity

_T, _TS, _I, _F = "VARCHAR", "VARCHAR[]", "BIGINT", "DOUBLE"


@dataclass(frozen=True)
class Table:
    name: str
    columns: dict[str, str]
    row: Callable[[Any], dict[str, Any]]
    """A record's own columns, apart from id, since and body."""


def _grade(one: Grade) -> dict[str, Any]:
    return {
        "trace_id": one.trace_id, "span_id": one.span_id, "reward": one.reward, "value": one.value,
        "weight": one.weight, "reason": one.reason, "kind": one.kind, "grader": one.grader,
        "problem_id": one.problem_id, "confirmed_by": one.confirmed_by, "given": one.at,
        "digest": _all_of(one),
    }  # fmt: skip


def _all_of(grade: Grade) -> str:
    """A hash of every field, the same whether or not a default was spelled out."""
    return digest(msgspec.structs.astuple(grade))


def _feedback(one: Feedback) -> dict[str, Any]:
    return {
        "project": one.project, "target": one.target, "target_kind": one.target_kind,
        "name": one.name, "said_by": one.by, "said": one.at,
    }  # fmt: skip


def _problem(one: Problem) -> dict[str, Any]:
    return {
        "environment": one.environment, "split": one.split, "slice": one.slice,
        "conversation": one.conversation, "user_id": one.user, "trace_id": one.trace_id,
    }  # fmt: skip


def _dataset(one: Dataset) -> dict[str, Any]:
    return {"project": one.project, "path": one.path, "rows": one.rows, "parents": one.parents}


def _run(one: Run) -> dict[str, Any]:
    return {
        "project": one.project, "algorithm": one.algorithm, "champion": one.champion,
        "dataset_id": one.dataset_id,
    }  # fmt: skip


def _checkpoint(one: Checkpoint) -> dict[str, Any]:
    return {"run_id": one.run_id, "parent": one.parent, "path": one.path}


def _evaluation(one: Evaluation) -> dict[str, Any]:
    return {
        "project": one.project, "run_id": one.run_id, "champion": one.champion,
        "candidate": one.candidate,
    }  # fmt: skip


def _decision(one: Decision) -> dict[str, Any]:
    return {
        "project": one.project, "outcome": one.outcome, "gate": one.gate, "run_id": one.run_id,
        "evaluation_id": one.evaluation_id, "deployment": one.deployment,
        "replaced": one.replaced, "decided": one.at,
    }  # fmt: skip


def _deployment(one: Deployment) -> dict[str, Any]:
    return {
        "project": one.project, "version": one.version, "checkpoint_id": one.checkpoint_id,
        "run_id": one.run_id,
    }  # fmt: skip


def _calibration(one: Calibration) -> dict[str, Any]:
    return {
        "project": one.project, "judge": one.judge, "reward": one.reward, "kappa": one.kappa,
        "given": one.at,
    }  # fmt: skip


def _mark(one: Mark) -> dict[str, Any]:
    return {
        "project": one.project, "target_kind": one.target_kind, "target": one.target,
        "cause": one.cause, "marked": one.at,
    }  # fmt: skip


def _erasure(one: Erasure) -> dict[str, Any]:
    return {"erased": one.at}


TABLES: dict[str, Table] = {
    "grade": Table("grades", {
        "trace_id": _T, "span_id": _T, "reward": _T, "value": _F, "weight": _F, "reason": _T,
        "kind": _T, "grader": _T, "problem_id": _T, "confirmed_by": _T, "given": _I, "digest": _T,
    }, _grade),
    "feedback": Table("feedback", {
        "project": _T, "target": _T, "target_kind": _T, "name": _T, "said_by": _T, "said": _I,
        "body": _T,
    }, _feedback),
    "problem": Table("problems", {
        "environment": _T, "split": _T, "slice": _T, "conversation": _T, "user_id": _T,
        "trace_id": _T, "body": _T,
    }, _problem),
    "dataset": Table("datasets", {
        "project": _T, "path": _T, "rows": _I, "parents": _TS, "body": _T,
    }, _dataset),
    "run": Table("runs", {
        "project": _T, "algorithm": _T, "champion": _T, "dataset_id": _T, "body": _T,
    }, _run),
    "checkpoint": Table("checkpoints", {
        "run_id": _T, "parent": _T, "path": _T, "body": _T,
    }, _checkpoint),
    "evaluation": Table("evaluations", {
        "project": _T, "run_id": _T, "champion": _T, "candidate": _T, "body": _T,
    }, _evaluation),
    "decision": Table("decisions", {
        "project": _T, "outcome": _T, "gate": _T, "run_id": _T, "evaluation_id": _T,
        "deployment": _T, "replaced": _T, "decided": _I, "body": _T,
    }, _decision),
    "deployment": Table("deployments", {
        "project": _T, "version": _I, "checkpoint_id": _T, "run_id": _T, "body": _T,
    }, _deployment),
    "calibration": Table("calibrations", {
        "project": _T, "judge": _T, "reward": _T, "kappa": _F, "given": _I, "body": _T,
    }, _calibration),
    "mark": Table("marks", {
        "project": _T, "target_kind": _T, "target": _T, "cause": _T, "marked": _I, "body": _T,
    }, _mark),
    "erasure": Table("erasures", {"erased": _I, "body": _T}, _erasure),
}  # fmt: skip


_decoders = {kind: msgspec.json.Decoder(KINDS[kind]) for kind in TABLES}


def all_columns(table: Table) -> dict[str, str]:
    return {"id": _T, "since": _I, **table.columns}


def row_of(table: Table, record: Any, sequence: int) -> tuple[Any, ...]:
    own = {"id": identity(record), "since": sequence, **table.row(record)}
    if "body" in table.columns:
        own["body"] = canonical(record)
    return tuple(own[name] for name in all_columns(table))


def record_of(kind: str, row: dict[str, Any]) -> Any:
    """The record of a row."""
    if kind != "grade":
        return _decoders[kind].decode(row["body"])
    same = ("trace_id", "reward", "value", "weight", "reason", "kind", "grader", "problem_id",
            "span_id", "confirmed_by")  # fmt: skip
    return Grade(**{name: row[name] for name in same}, at=row["given"])


def stands(old: Any, new: Any) -> Any:
    """Which of two records of one id stands, or what they make together; `old` itself where nothing
    changes."""
    if old == new:
        return old
    if isinstance(new, Grade):
        return max(old, new, key=lambda one: (one.at, _all_of(one)))
    known = {
        name: getattr(old, name)
        for name in new.__struct_fields__
        if getattr(new, name) is None and getattr(old, name) is not None
    }
    made = msgspec.structs.replace(new, **known) if known else new
    return old if made == old else made

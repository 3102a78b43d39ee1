"""What people said about a row, in the row: a number, a word, or objects, as Feedback records."""

from typing import Any, Literal, TypeAlias

from flywheel.records import Feedback, Trace

from .times import nanoseconds

Kind: TypeAlias = Literal["boolean", "number", "category", "text", "demonstration"]

_KNOWN = frozenset(("name", "value", "score", "by", "user", "at", "timestamp"))


def kind_of(value: object) -> Kind:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "demonstration"


def read_feedback(value: Any, trace: Trace) -> list[Feedback]:
    """`value` is one verdict, an object {name, value, …}, an object of verdicts, or a list."""
    at = trace.spans[-1].end or trace.spans[-1].start or 0 if trace.spans else 0
    return feedback_on(value, trace.project, trace.id, at)


def feedback_on(value: Any, project: str, target: str, at: int) -> list[Feedback]:
    """The same of a trace by its id; `at`: when, where it is not said."""
    if value is None:
        return []
    if isinstance(value, list):
        return [item for one in value for item in feedback_on(one, project, target, at)]
    if not isinstance(value, dict):
        return [_said(project, target, "feedback", value, at)]
    if "value" not in value and "score" not in value:
        return [
            _said(project, target, name, one, at) for name, one in value.items() if one is not None
        ]
    said = value.get("value", value.get("score"))
    by = value.get("by", value.get("user"))
    others = {key: value[key] for key in value.keys() - _KNOWN if value[key] is not None}
    return [
        Feedback(
            project=project,
            target=target,
            name=str(value.get("name") or "feedback"),
            value=said,
            kind=kind_of(said),
            by=None if by is None else str(by),
            at=nanoseconds(value.get("at", value.get("timestamp"))) or at,
            attributes=others,
        )
    ]


def _said(project: str, target: str, name: str, value: object, at: int) -> Feedback:
    return Feedback(
        project=project, target=target, name=name, value=value, kind=kind_of(value), at=at
    )

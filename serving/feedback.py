"""What people say about answers: checked, made into Feedback records, journalled before we say yes.

It may come before its trace and it may come twice. When the sender says when (`at`), the content
decides: the same again is the same record. When not, `Recent` decides: a repetition of what was
last said, or of an idempotency key, is the record that it already is; anything else is a change of
mind and gets a later time than what it replaces, so that it supersedes.
"""

import time
from collections import OrderedDict
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from flywheel.records import Feedback
from flywheel.reviews import NAME as REVIEW
from serving.limits import Limits, decode, identifier
from serving.refusal import invalid

Kind = Literal["boolean", "number", "category", "text", "demonstration"]
_TARGETS: tuple[tuple[str, Literal["trace", "conversation", "span"]], ...] = (
    ("trace_id", "trace"),
    ("conversation_id", "conversation"),
    ("response_id", "span"),
)
_EARLIEST = 946_684_800 * 10**9
_AHEAD = 24 * 3600 * 10**9


class Said(Struct, forbid_unknown_fields=True, frozen=True):
    """One item as it is sent."""

    value: Any | UnsetType = UNSET
    trace_id: str | None = None
    conversation_id: str | None = None
    response_id: str | None = None
    project: str | None = None
    kind: Kind | None = None
    name: str = "outcome"
    by: str | None = None
    at: int | float | str | None = None
    """ISO 8601 with its zone, or seconds (or milli-, micro-, nanoseconds) since 1970."""
    comment: str | None = None
    idempotency_key: str | None = None


class Batch(Struct, forbid_unknown_fields=True, frozen=True):
    feedback: list[Said]


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_one = msgspec.json.Decoder(Said)
_many = msgspec.json.Decoder(list[Said])
_batch = msgspec.json.Decoder(Batch)


def read_feedback(body: bytes, limits: Limits) -> tuple[list[Said], bool]:
    """The items, and whether they came as a list.

    Raises:
        ApiError: 400, with the place of the first item that is wrong; then none is taken.
    """
    if body.lstrip()[:1] == b"[":
        said = decode(body, _many, limits.depth)
    elif "feedback" in decode(body, _fields, limits.depth):
        said = decode(body, _batch, limits.depth).feedback
    else:
        return [decode(body, _one, limits.depth)], False
    if len(said) > limits.batch:
        raise invalid(f"{len(said)} items in one batch; at most {limits.batch}")
    return said, True


def feedback_of(said: Said, projects: frozenset[str], limits: Limits, where: str = "") -> Feedback:
    """`at` 0 = the sender did not say.

    Raises:
        ApiError: 400.
    """
    given = [(name, kind) for name, kind in _TARGETS if getattr(said, name) is not None]
    if len(given) != 1:
        raise invalid(f"{where}say exactly one of trace_id, conversation_id, response_id")
    (name, target_kind) = given[0]
    if said.value is UNSET or said.value is None:
        raise invalid(f"{where}value is missing", "value")
    kind = _kind(said.value, said.kind, where)
    if len(msgspec.json.encode(said.value)) > limits.text:
        raise invalid(f"{where}value is larger than {limits.text} bytes", "value")
    if said.name == REVIEW:  # its roles are the dashboard's; a key of the gateway has none
        raise invalid(
            f"{where}a review is given on the dashboard (`flywheel dashboard`), by who may; send "
            'what an answer was worth under another name, and the right answer as {"kind": '
            '"demonstration"}',
            "name",
        )
    return Feedback(
        project=_project(said.project, projects, where),
        target=identifier(getattr(said, name), name, limits.identifier),
        target_kind=target_kind,
        name=identifier(said.name, "name", limits.identifier),
        value=said.value,
        kind=kind,
        by=None if said.by is None else identifier(said.by, "by", limits.identifier),
        at=0 if said.at is None else _at(said.at, where),
        attributes={} if said.comment is None else {"comment": said.comment[: limits.text]},
    )


def _project(name: str | None, projects: frozenset[str], where: str) -> str:
    if name is None and len(projects) == 1:
        return next(iter(projects))
    if name is None or name not in projects:
        raise invalid(f"{where}project must be one of {sorted(projects)}", "project")
    return name


def _kind(value: Any, kind: Kind | None, where: str) -> Kind:
    natural: Kind
    if isinstance(value, bool):
        natural = "boolean"
    elif isinstance(value, int | float):
        natural = "number"
    elif isinstance(value, str):
        natural = "text"
    else:
        natural = "demonstration"
    fits = kind in (None, natural, "demonstration") or (natural == "text" and kind == "category")
    if not fits:
        raise invalid(f"{where}value is no {kind}", "value")
    return kind or natural


def _at(at: int | float | str, where: str) -> int:
    if isinstance(at, str):
        try:
            moment = datetime.fromisoformat(at)
        except ValueError as error:
            raise invalid(
                f"{where}at is neither a number nor ISO 8601: {at[:40]!r}", "at"
            ) from error
        if moment.tzinfo is None:
            raise invalid(f"{where}at has no time zone: {at[:40]!r}", "at")
        nanoseconds = int(moment.timestamp() * 10**6) * 1000
    else:
        unit = next((unit for top, unit in _UNITS if abs(at) < top), None)
        nanoseconds = 0 if unit is None else int(at * unit)
    if not _EARLIEST <= nanoseconds <= time.time_ns() + _AHEAD:
        raise invalid(f"{where}at is not a time between the year 2000 and tomorrow", "at")
    return nanoseconds


_UNITS = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3), (10**20, 1))


class Recent:
    """What was said lately without a time: enough to know a repetition from a change of mind.

    Kept in memory and bounded. After a restart a repetition becomes a second record with the same
    content, which supersedes the first and so still counts once.
    """

    def __init__(self, size: int = 100_000) -> None:
        self._size = size
        self._last: OrderedDict[tuple[str | None, ...], Feedback] = OrderedDict()
        self._keys: OrderedDict[tuple[str, str], Feedback] = OrderedDict()

    def settle(self, feedback: Feedback, key: str | None) -> tuple[Feedback, bool]:
        """The record to keep, and whether it is one that was already kept."""
        by_key = self._keys.get((feedback.project, key)) if key else None
        if by_key is not None:
            if _timeless(by_key) != _timeless(feedback):
                raise invalid("this idempotency key was used for other content", "idempotency_key")
            return by_key, True
        last = self._last.get(_about(feedback))
        if feedback.at:
            return feedback, last == feedback
        if key is None and last is not None and _timeless(last) == _timeless(feedback):
            return last, True
        at = max(time.time_ns(), last.at + 1 if last else 0)
        return msgspec.structs.replace(feedback, at=at), False

    def keep(self, feedback: Feedback, key: str | None) -> None:
        """Called once the record is in the journal."""
        about = _about(feedback)
        last = self._last.get(about)
        if last is None or last.at <= feedback.at:
            self._last[about] = feedback
            self._last.move_to_end(about)
        if key:
            self._keys[(feedback.project, key)] = feedback
        for kept in (self._last, self._keys):
            while len(kept) > self._size:
                kept.popitem(last=False)


def _about(feedback: Feedback) -> tuple[str | None, ...]:
    """What a later word of the same person replaces."""
    return (
        feedback.project,
        feedback.target_kind,
        feedback.target,
        feedback.name,
        feedback.by,
    )


def _timeless(feedback: Feedback) -> Feedback:
    return msgspec.structs.replace(feedback, at=0)

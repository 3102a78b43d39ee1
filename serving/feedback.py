"""What people say about answers, read and checked: bytes enter, Feedback records leave.

It is of a trace, a response, a conversation or an episode, by our id or the sender's own, or it
says which of two answers is the better. `serving.feedback_taken` keeps it.
"""

import time
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from flywheel.records import Feedback
from flywheel.reviews import NAME as REVIEW
from serving.limits import Limits, decode, identifier
from serving.refusal import invalid

Kind = Literal["boolean", "number", "category", "text", "demonstration", "preference"]
_TARGETS: dict[str, Literal["trace", "conversation", "span", "episode"]] = {
    "trace_id": "trace",
    "conversation_id": "conversation",
    "episode_id": "episode",
    "response_id": "span",
    "span_id": "span",
}
_EARLIEST = 946_684_800 * 10**9
_AHEAD = 24 * 3600 * 10**9


class Said(Struct, forbid_unknown_fields=True, frozen=True):
    """One item as it is sent."""

    value: Any | UnsetType = UNSET
    trace_id: str | None = None
    conversation_id: str | None = None
    episode_id: str | None = None
    response_id: str | None = None
    span_id: str | None = None
    project: str | None = None
    kind: Kind | None = None
    name: str = "outcome"
    by: str | None = None
    at: int | float | str | None = None
    """ISO 8601 with its zone, or seconds (or milli-, micro-, nanoseconds) since 1970."""
    comment: str | None = None
    idempotency_key: str | None = None


class Between(Struct, forbid_unknown_fields=True, frozen=True):
    """The value of a preference."""

    chosen: str | Annotated[int, Meta(ge=0, le=1000)]
    rejected: str | Annotated[int, Meta(ge=0, le=1000)]


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
    if said.kind == "preference":
        return _preference(said, projects, limits, where)
    given = [name for name in _TARGETS if getattr(said, name) is not None]
    if len(given) != 1:
        raise invalid(f"{where}say exactly one of {', '.join(_TARGETS)}")
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
    (name,) = given
    target = identifier(getattr(said, name), name, limits.identifier)
    named = identifier(said.name, "name", limits.identifier)
    return _record(said, (target, _TARGETS[name], named, kind), projects, limits, where)


def _preference(said: Said, projects: frozenset[str], limits: Limits, where: str) -> Feedback:
    """Which of two responses, or of two answers (`n`) of one response, is the better.

    Its target and name are those of the pair, whichever is preferred, so that a change of mind
    supersedes. Raises as `feedback_of` does.
    """
    try:
        pair = msgspec.convert(said.value, Between)
    except msgspec.ValidationError as error:
        raise invalid(
            f'{where}value of a preference is {{"chosen": ID, "rejected": ID}}, ids of two '
            f"responses; of one with several answers it is their numbers: {error}", "value",
        ) from error  # fmt: skip
    chosen, rejected = pair.chosen, pair.rejected
    named = [name for name in _TARGETS if getattr(said, name) is not None]
    if chosen == rejected:
        raise invalid(f"{where}chosen and rejected are the same", "value")
    if isinstance(chosen, str) and isinstance(rejected, str) and not named:
        first, second = sorted(
            identifier(one, "value", limits.identifier) for one in (chosen, rejected)
        )
    elif isinstance(chosen, int) and isinstance(rejected, int) and named == ["response_id"]:
        first = identifier(said.response_id, "response_id", limits.identifier)
        second = "-".join(map(str, sorted((chosen, rejected))))
    else:
        raise invalid(
            f"{where}a preference names two responses and nothing else, or two numbers of the "
            "answers of one response_id", "value",
        )  # fmt: skip
    name = identifier(said.name, "name", limits.identifier)
    return _record(said, (first, "span", f"{name}:{second}", "preference"), projects, limits, where)


def _record(
    said: Said,
    what: tuple[str, Literal["trace", "conversation", "span", "episode"], str, Kind],
    projects: frozenset[str],
    limits: Limits,
    where: str,
) -> Feedback:
    target, target_kind, name, kind = what
    return Feedback(
        project=_project(said.project, projects, where),
        target=target,
        target_kind=target_kind,
        name=name,
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

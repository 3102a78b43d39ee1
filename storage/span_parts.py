"""A span that its sender tells in parts (begun, then ended; asked, then answered) as one span.

Enter two parts of one span, whose `parts` name the fields that each knows; leaves their join. Each
field is decided by itself, by (version, content hash), so that joining is associative, commutative
and idempotent. Two values of one field at one version contradict each other: that is noted.
"""

from typing import Any

import msgspec

from flywheel.ids import digest
from flywheel.records import ModelCall, Span

_CALL = "call."
_DISPUTED = "!"


def part(span: Span, *known: str, version: int = 0) -> Span:
    """`span` as one part of itself, of which the fields `known` ("end", "call.input") are told."""
    return msgspec.structs.replace(
        span, version=version, parts={name: version for name in sorted(known)}
    )


def joined(old: Span, new: Span) -> Span:
    """What both parts tell of the span."""
    parts: dict[str, int] = {}
    fields: dict[str, Any] = {}
    call: dict[str, Any] = {}
    for name in sorted(old.parts.keys() | new.parts.keys()):
        if name.endswith(_DISPUTED):
            continue
        teller, version, disputed = _teller(name, old, new)
        parts[name] = version
        if disputed:
            parts[name + _DISPUTED] = version
        if name.startswith(_CALL):
            call[name.removeprefix(_CALL)] = _value(teller, name)
        else:
            fields[name] = _value(teller, name)
    # A part that merely carries an empty call shows that this is a model's span.
    if call or old.call is not None or new.call is not None:
        fields["call"] = ModelCall(**{"input": (), **call})
    attributes = dict(old.attributes)
    for key, value in new.attributes.items():
        attributes[key] = _greater(attributes[key], value) if key in attributes else value
    return Span(
        id=old.id,
        version=max(old.version, new.version),
        parts=parts,
        attributes=attributes,
        **{"kind": "other", **fields},
    )


def disputed(span: Span) -> list[str]:
    """Fields of which two parts told different things at one version."""
    return [name.removesuffix(_DISPUTED) for name in span.parts if name.endswith(_DISPUTED)]


def _teller(name: str, old: Span, new: Span) -> tuple[Span, int, bool]:
    """Whose value of the field stands, its version, and whether it is disputed."""
    before, after = old.parts.get(name, -1), new.parts.get(name, -1)
    if before != after:
        teller, version = (old, before) if before > after else (new, after)
        return teller, version, teller.parts.get(name + _DISPUTED) == version
    first, second = _value(old, name), _value(new, name)
    marks = {one.parts.get(name + _DISPUTED) for one in (old, new)}
    if first == second:
        return old, before, before in marks
    return (old if digest(first) >= digest(second) else new), before, True


def _value(span: Span, name: str) -> Any:
    if not name.startswith(_CALL):
        return getattr(span, name)
    return getattr(span.call or ModelCall(input=()), name.removeprefix(_CALL))


def _greater(old: Any, new: Any) -> Any:
    return old if old == new or digest(old) >= digest(new) else new

"""A record as one line of bytes, and back: what journals and segments hold.

Enters any record of ours; leaves `["kind",{…}]`, JSON with sorted keys and without a line break, so
that equal records give equal bytes wherever they were written. Text is made storable on the way in:
a lone half of a surrogate pair becomes U+FFFD, a number that JSON has no form for becomes null.
"""

import math
from typing import Any, TypeAlias

import msgspec

from flywheel.errors import BadRecord
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
from flywheel.records import Feedback, Grade, Problem, Trace

AnyRecord: TypeAlias = (
    Trace
    | Grade
    | Feedback
    | Problem
    | Dataset
    | Run
    | Checkpoint
    | Evaluation
    | Decision
    | Deployment
    | Calibration
    | Mark
    | Erasure
)

KINDS: dict[str, type[AnyRecord]] = {
    "trace": Trace,
    "grade": Grade,
    "feedback": Feedback,
    "problem": Problem,
    "dataset": Dataset,
    "run": Run,
    "checkpoint": Checkpoint,
    "evaluation": Evaluation,
    "decision": Decision,
    "deployment": Deployment,
    "calibration": Calibration,
    "mark": Mark,
    "erasure": Erasure,
}

_NAMES = {record: kind for kind, record in KINDS.items()}
_encoder = msgspec.json.Encoder(order="deterministic")
_decoders = {kind: msgspec.json.Decoder(record) for kind, record in KINDS.items()}


def encode(record: AnyRecord) -> bytes:
    """`record` as one line, without the line break.

    Raises:
        BadRecord: it holds something that has no JSON form, or is nested too deep.
    """
    kind = _NAMES.get(type(record))
    if kind is None:
        raise BadRecord(f"a {type(record).__name__} is no record of the store: {sorted(KINDS)} are")
    if isinstance(record, Trace):
        record = finite(record)
    try:
        try:
            body = _encoder.encode(record)
        except UnicodeEncodeError:
            body = _encoder.encode(_storable(msgspec.to_builtins(record)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRecord(f"{kind} {identity(record)} cannot be stored: {error}") from error
    return b'["%b",%b]' % (kind.encode(), body)


def decode(line: bytes) -> tuple[str, AnyRecord]:
    """The kind and the record of a line that `encode` wrote.

    Raises:
        BadRecord: it is not such a line.
    """
    kind, body = split(line)
    return kind, decode_body(kind, body)


def split(line: bytes) -> tuple[str, bytes]:
    """The kind and the record's own JSON, without reading it."""
    if line.startswith(b'["') and line.endswith(b"]"):
        kind, found, body = line[2:-1].partition(b'",')
        if found and (name := kind.decode("ascii", "replace")) in KINDS:
            return name, body
    raise BadRecord(f'not a record\'s line (`["kind",{{…}}]`, kind one of {", ".join(KINDS)})')


def decode_body(kind: str, body: bytes) -> AnyRecord:
    try:
        return _decoders[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadRecord(f"not a {kind}: {error}") from error


def identity(record: AnyRecord) -> str:
    """The id that names `record` among its kind."""
    return record.name if isinstance(record, Deployment) else record.id


def finite(trace: Trace) -> Trace:
    """Without logprobs that are not numbers: nothing can be computed from them."""
    if all(
        choice.tokens is None
        or choice.tokens.logprobs is None
        or all(map(math.isfinite, choice.tokens.logprobs))
        for span in trace.spans
        if span.call
        for choice in span.call.choices
    ):
        return trace
    spans = tuple(
        msgspec.structs.replace(
            span,
            call=msgspec.structs.replace(
                span.call,
                choices=tuple(
                    msgspec.structs.replace(choice, tokens=_without_logprobs(choice.tokens))
                    for choice in span.call.choices
                ),
            ),
            attributes={**span.attributes, "logprobs": "dropped: not finite"},
        )
        if span.call
        else span
        for span in trace.spans
    )
    return msgspec.structs.replace(trace, spans=spans)


def _without_logprobs(tokens: Any) -> Any:
    if tokens is None or tokens.logprobs is None or all(map(math.isfinite, tokens.logprobs)):
        return tokens
    return msgspec.structs.replace(tokens, logprobs=None)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_storable(key): _storable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(one) for one in value]
    return value

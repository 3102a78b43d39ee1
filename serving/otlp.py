"""OTLP over HTTP: spans and log records of any instrumented application into the inbox.

Enters an export request, protobuf or JSON, plain or gzip; leaves OTLP's own answer in the same
encoding, once what it holds is on the disk. What a span or record means is said by the format that
file imports are read by (`storage.formats.otlp`); the committer joins spans that come late, twice,
or before their parents.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from flywheel.errors import BadRecord
from flywheel.ids import digest_bytes
from serving import wire
from serving.intake import Accepted, Held, Intake, Sent
from serving.keeping import Keeping
from serving.keys import Caller
from serving.limits import Limits
from serving.recording import Recording
from serving.redaction import Redaction
from serving.refusal import ApiError, Headers, invalid
from serving.whose import whose
from storage import json_in, otlp_in
from storage.belonging import NOBODY

Signal = Literal["spans", "logs"]
_SIGNALS: dict[str, Signal] = {"/v1/traces": "spans", "/v1/logs": "logs"}
PATHS = tuple(_SIGNALS)
_PROTOBUF, _JSON = b"application/x-protobuf", b"application/json"
_GROUPS: dict[Signal, str] = {"spans": "resourceSpans", "logs": "resourceLogs"}
_STATUS = {400: 3, 401: 16, 403: 7, 404: 5, 408: 4, 413: 3, 415: 3, 429: 8, 503: 14}
"""HTTP's as google.rpc.Code: what the body of a refusal says."""


class _Request(NamedTuple):
    signal: Signal
    json: bool
    packed: bool
    body: bytes


class Otlp:
    """The ASGI endpoint of both paths."""

    def __init__(
        self,
        intake: Intake,
        recording: Recording,
        keeping: Keeping,
        projects: frozenset[str],
        limits: Limits,
    ) -> None:
        self._intake, self._recording, self._keeping = intake, recording, keeping
        self._projects, self._limits = projects, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = scope["flywheel.headers"]
        named = [(b"x-request-id", scope["flywheel.request_id"].encode())]
        kind = _kind(headers)
        counts = self._recording.counts
        counts["otlp_requests"] += 1
        try:
            accepted = await self._take(_SIGNALS[scope["path"]], kind, scope, receive)
        except wire.HungUp:
            counts["hung_up"] += 1
        except ApiError as error:
            counts[f"refused_{error.status}"] += 1
            await refuse(send, error, named, json=kind != _PROTOBUF)
        else:
            body = _answer(_SIGNALS[scope["path"]], accepted, json=kind == _JSON)
            await wire.answer(send, 200, body, [(b"content-type", kind), *named])

    async def _take(self, signal: Signal, kind: bytes, scope: Scope, receive: Receive) -> Accepted:
        headers: dict[bytes, bytes] = scope["flywheel.headers"]
        if kind not in (_PROTOBUF, _JSON):
            raise ApiError(415, "OTLP comes as application/x-protobuf or application/json")
        project = self._project(headers, scope["flywheel.caller"])
        packed = headers.get(b"content-encoding", b"identity")
        body = await wire.read_body(headers, receive, self._limits, (b"identity", b"gzip"))
        await self._recording.ready()
        asked = _Request(signal, kind == _JSON, packed == b"gzip", body)
        told = whose(headers, None, scope["flywheel.caller"], self._limits.identifier)
        about = (project, *asked[:3]) if told == NOBODY else (project, *asked[:3], told)
        key = digest_bytes(repr(about).encode() + body)
        redaction = self._keeping.redaction(project)

        def read() -> Held:
            held = _rows(asked, self._limits)
            if redaction is None:
                return held
            return held._replace(rows=[_redacted(row, redaction) for row in held.rows])

        return await self._intake.take(Sent(project, "otlp", key, len(body), read, told))

    def _project(self, headers: dict[bytes, bytes], caller: Caller) -> str:
        """That the header names, else the only one that there is for the caller."""
        allowed = frozenset(filter(caller.may, self._projects))
        named = headers.get(b"x-flywheel-project")
        if named is None:
            if len(allowed) == 1:
                return next(iter(allowed))
            raise invalid(f"say whose spans these are: x-flywheel-project, of {sorted(allowed)}")
        name = named.decode("latin-1")
        if name not in allowed:
            raise ApiError(404, f"x-flywheel-project must be one of {sorted(allowed)}")
        return name


async def refuse(send: Send, error: ApiError, named: Headers, *, json: bool) -> None:
    """As google.rpc.Status, which OTLP's clients read."""
    code = _STATUS.get(error.status, 13)
    if json:
        await wire.refuse(
            send, error, named, msgspec.json.encode({"code": code, "message": error.message})
        )
        return
    from google.rpc.status_pb2 import Status

    headers = [pair for pair in error.headers() if pair[0] != b"content-type"]
    body = Status(code=code, message=error.message).SerializeToString()
    await wire.answer(send, error.status, body, [(b"content-type", _PROTOBUF), *headers, *named])


def unpacked(body: bytes, limit: int) -> bytes:
    """The plain bytes of gzip.

    Raises:
        ApiError: 400: it is none; 413: there are more than `limit` of them.
    """
    pieces: list[bytes] = []
    size = 0
    while body:
        unpacker = zlib.decompressobj(wbits=31)
        while body and not unpacker.eof:
            try:
                pieces.append(unpacker.decompress(body, min(1 << 20, limit + 1 - size)))
            except zlib.error as error:
                raise invalid(f"the body is no whole gzip: {error}") from error
            size += len(pieces[-1])
            if size > limit:
                raise ApiError(
                    413, f"the body unpacks to more than {limit} bytes", code="request_too_large"
                )
            body = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        if not unpacker.eof:
            raise invalid("the body is no whole gzip: it is cut off")
    return b"".join(pieces)


def _rows(asked: _Request, limits: Limits) -> Held:
    """
    Raises:
        ApiError, BadRecord: it is no export request.
    """
    body = unpacked(asked.body, limits.body) if asked.packed else asked.body
    if not asked.json:
        rows = [row.rstrip(b"\n") for row in otlp_in.json_lines(iter([body]), asked.signal)]
        return Held(rows) if asked.signal == "spans" else _of_spans(map(json_in.decode, rows))
    value = json_in.decode(body)
    group = _GROUPS[asked.signal]
    if not isinstance(value, dict) or not isinstance(value.get(group, []), list):
        raise BadRecord(f"is no export request: an object with a list of {group}")
    if asked.signal == "logs":
        return _of_spans([value])
    return Held([body]) if value.get(group) else Held([])


_STRUCTURE = frozenset(
    (
        "traceId", "spanId", "parentSpanId", "kind", "code", "startTimeUnixNano",
        "endTimeUnixNano", "timeUnixNano", "observedTimeUnixNano",
    )
)  # fmt: skip
"""Fields that only say how spans hang together; what a person may have said stands elsewhere."""


_ID = re.compile(r"(?:^|[._])(?:user|id|session|thread|customer)$")
"""Attributes that name somebody or something: two that are not the same stay two."""


def _redacted(row: bytes, redaction: Redaction) -> bytes:
    def clean(value: Any, named: bool = False) -> Any:
        nonlocal redaction
        if isinstance(value, dict):
            if "spanId" in value:
                redaction = redaction.begun()
            named = named or _ID.search(str(value.get("key", ""))) is not None
            return {
                redaction.text(key): one if key in _STRUCTURE else clean(one, named)
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [clean(one, named) for one in value]
        if named and isinstance(value, str):
            return redaction.name(value)
        return redaction.value(value)

    return msgspec.json.encode(clean(json_in.decode(row)))


def _of_spans(values: Iterable[Any]) -> Held:
    """Requests of log records without those that belong to no span: an application's other logs."""
    rows, dropped = [], 0
    for value in values:
        kept = 0
        for scope in _scopes(value):
            records = scope["logRecords"]
            scope["logRecords"] = [one for one in records if _has_span(one)]
            kept += len(scope["logRecords"])
            dropped += len(records) - len(scope["logRecords"])
        if kept:
            rows.append(msgspec.json.encode(value))
    why = "log records that belong to no span are not kept" if dropped else None
    return Held(rows, dropped, why)


def _scopes(value: Any) -> Iterator[dict[str, Any]]:
    for resource in value.get("resourceLogs") or ():
        scopes = resource.get("scopeLogs") if isinstance(resource, dict) else None
        for scope in scopes if isinstance(scopes, list) else ():
            if isinstance(scope, dict) and isinstance(scope.get("logRecords"), list):
                yield scope


def _has_span(record: Any) -> bool:
    return not isinstance(record, dict) or bool(record.get("traceId") and record.get("spanId"))


def _kind(headers: dict[bytes, bytes]) -> bytes:
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def _answer(signal: Signal, accepted: Accepted, *, json: bool) -> bytes:
    """What was taken, in OTLP's own words; empty where it was all."""
    if json:
        partial = {
            "rejectedSpans" if signal == "spans" else "rejectedLogRecords": str(accepted.rejected),
            "errorMessage": accepted.why,
        }
        return msgspec.json.encode({"partialSuccess": partial} if accepted.rejected else {})
    if not accepted.rejected:
        return b""
    if signal == "spans":
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

        spans = traces.ExportTracePartialSuccess(
            rejected_spans=accepted.rejected, error_message=accepted.why or ""
        )
        return bytes(traces.ExportTraceServiceResponse(partial_success=spans).SerializeToString())
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs

    records = logs.ExportLogsPartialSuccess(
        rejected_log_records=accepted.rejected, error_message=accepted.why or ""
    )
    return bytes(logs.ExportLogsServiceResponse(partial_success=records).SerializeToString())

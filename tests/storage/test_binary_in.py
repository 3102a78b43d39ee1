"""Files that are no JSON and are read as JSON lines: Parquet, OTLP in protobuf, event streams."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs

from flywheel.errors import BadRecord
from storage import otlp_in
from storage.files_in import blocks


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in b"".join(blocks(path)).splitlines()]


def test_a_parquet_file_is_read_a_row_a_line_without_null_cells(tmp_path: Path):
    moment = 1_795_957_523_156_773_266
    table = pa.table({
        "name": pa.array(["a", None, "c"]),
        "when": pa.array([moment, None, 5], pa.timestamp("ns", "UTC")),
        "when_us": pa.array([1_700_000_000_000_000] * 3, pa.timestamp("us")),
        "attributes.n": pa.array([1.5, float("nan"), None]),
        "list": pa.array([[1, 2], [], None]),
        "messages": pa.array([[{"role": "user", "content": "x"}], None, None]),
        "raw": pa.array([b"\xff", None, None]),
    })  # fmt: skip
    path = tmp_path / "table.bin"
    pq.write_table(table, path, row_group_size=2)
    first, second, third = lines(path)
    assert first == {
        "name": "a", "when": moment, "when_us": 1_700_000_000_000_000_000, "attributes.n": 1.5,
        "list": [1, 2], "messages": [{"role": "user", "content": "x"}], "raw": "/w==",
    }  # fmt: skip
    assert second == {"when_us": 1_700_000_000_000_000_000, "list": [], "attributes.n": None}
    assert third == {"name": "c", "when": 5, "when_us": 1_700_000_000_000_000_000}


def test_a_parquet_file_that_spreads_one_text_over_a_million_rows_is_stopped(tmp_path: Path):
    text = "x" * 100_000
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array([text]))
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"text": column}), path)
    assert path.stat().st_size < 200_000
    size = 0
    with pytest.raises(BadRecord, match="as no log does"):
        for block in blocks(path):
            size += len(block)
    assert size < 200 << 20


def test_a_damaged_parquet_file_says_so(tmp_path: Path):
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    data = path.read_bytes()
    for bad in (
        data[:50],
        data[:-20],
        b"PAR1" + b"\x00" * 100,
        data[:30] + b"zz" * 40 + data[110:],
    ):
        path.write_bytes(bad)
        with pytest.raises(BadRecord, match="Parquet"):
            list(blocks(path))


def request(number: int) -> ExportTraceServiceRequest:
    found = ExportTraceServiceRequest()
    group = found.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = group.scope_spans.add()
    scope.scope.name = "lib"
    span = scope.spans.add(
        trace_id=bytes([number]) * 16, span_id=bytes([number]) * 8, name="chat",
        parent_span_id=b"\x09" * 8, start_time_unix_nano=5, end_time_unix_nano=7,
        dropped_events_count=2, trace_state="a=b",
    )  # fmt: skip
    span.status.code = 2
    for key, value in {"s": "t", "i": -(2**62), "b": True, "d": 1.5}.items():
        into = span.attributes.add(key=key).value
        kind = {str: "string", bool: "bool", int: "int", float: "double"}[type(value)]
        setattr(into, f"{kind}_value", value)
    held = span.attributes.add(key="l").value.array_value.values.add().kvlist_value
    held.values.add(key="x").value.bytes_value = b"\xff"
    event = span.events.add(name="exception", time_unix_nano=6)
    event.attributes.add(key="exception.message").value.string_value = "no"
    span.links.add(trace_id=bytes([number]) * 16, span_id=b"\x08" * 8)
    return found


SPAN = {
    "traceId": "01" * 16, "spanId": "01" * 8, "parentSpanId": "09" * 8, "name": "chat", "kind": 0,
    "startTimeUnixNano": 5, "endTimeUnixNano": 7, "traceState": "a=b", "droppedEventsCount": 2,
    "status": {"code": 2, "message": ""},
    "attributes": {"s": "t", "i": -(2**62), "b": True, "d": 1.5, "l": [{"x": "/w=="}]},
    "events": [{"name": "exception", "timeUnixNano": 6, "attributes": {"exception.message": "no"}}],
    "links": [{"traceId": "01" * 16, "spanId": "08" * 8, "attributes": {}}],
}  # fmt: skip


def test_otlp_in_protobuf_is_read_one_resource_a_line_however_it_was_written(tmp_path: Path):
    one, two = (request(number).SerializeToString() for number in (1, 2))
    framed = b"".join(len(data).to_bytes(4, "big") + data for data in (one, two))
    for name, data in {
        "plain": one + two,
        "framed": framed,
        "gz": gzip.compress(one + two),
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        first, second = lines(path)
        (group,) = first["resourceSpans"]
        assert group["resource"]["attributes"] == {"service.name": "shop"}
        (scope,) = group["scopeSpans"]
        assert scope["scope"] == {"name": "lib", "version": ""} and scope["spans"] == [SPAN]
        assert second["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] == "02" * 16


def test_log_records_in_protobuf_are_told_from_spans(tmp_path: Path):
    group = ResourceLogs()
    record = group.scope_logs.add().log_records.add(
        trace_id=b"\x01" * 16, span_id=b"\x01" * 8, time_unix_nano=5, event_name="gen_ai.choice"
    )
    record.body.kvlist_value.values.add(key="index").value.int_value = 0
    data = group.SerializeToString()
    assert len(data) < 128
    path = tmp_path / "logs.pb"
    path.write_bytes(bytes([0x0A, len(data)]) + data)
    (row,) = lines(path)
    (found,) = row["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert found["traceId"] == "01" * 16 and found["eventName"] == "gen_ai.choice"
    assert found["body"] == {"index": 0}


def test_otlp_in_protobuf_that_breaks_off_gives_what_came_before(tmp_path: Path):
    data = request(1).SerializeToString() * 3
    path = tmp_path / "cut.pb"
    path.write_bytes(data[:-5])
    found = []
    with pytest.raises(BadRecord, match=r"cut off.* inside resource 3"):
        for block in blocks(path):
            found.append(block)
    assert len(found) == 2
    path.write_bytes(data + b"\x99junk")
    with pytest.raises(BadRecord, match="no OTLP in protobuf"):
        list(blocks(path))


def test_small_blocks_are_put_together():
    data = request(1).SerializeToString() * 2

    def pieces() -> Iterator[bytes]:
        for at in range(0, len(data), 7):
            yield data[at : at + 7]

    assert len(list(otlp_in.json_lines(pieces()))) == 2


def test_json_is_not_taken_for_protobuf():
    for text in (
        b'\n["a",{}]',
        b'\n{"a": 1}',
        b"\n\n\n{}",
        b"\n{\n  1}",
        b"\n",
        b"{}",
        b"\x00" * 9,
    ):
        assert not otlp_in.is_otlp(text + b" " * 200), text


def test_a_captured_event_stream_is_read_an_event_a_line(tmp_path: Path):
    path = tmp_path / "capture.sse"
    text = (
        ': hi\r\nevent: a\r\ndata: {"n": 1, "t": "\u2028"}\r\n\r\ndata:{"n": 2}\n\ndata: [DONE]\n\n'
    )
    path.write_text(text, newline="")
    assert lines(path) == [{"n": 1, "t": "\u2028"}, {"n": 2}]

"""Spans that the gateway sends to a collector, read as the collector reads them."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from serving.observing import Seen
from serving.spans_out import SpansOut

CUT = Seen(
    project="support",
    deployment="support-v3",
    end="cut",
    code="engine_cut",
    at=1_800_000_000 * 10**9,
    queued_s=0.5,
    total_s=1.5,
    input_tokens=7,
    trace_id="ours",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


@contextmanager
def collector() -> Iterator[tuple[str, list[Span]]]:
    """At the network's far edge: takes OTLP over HTTP."""
    spans: list[Span] = []

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            sent = ExportTraceServiceRequest.FromString(body)
            spans.extend(
                span
                for resource in sent.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
    finally:
        server.shutdown()
        server.server_close()


def test_a_request_is_a_span_below_its_callers_with_only_what_is_known() -> None:
    with collector() as (url, spans):
        out = SpansOut(url)
        out.hear(CUT)
        out.hear(msgspec.structs.replace(CUT, end="answered", code=None, traceparent=None))
        out.close()
    cut, answered = spans
    assert cut.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert cut.parent_span_id.hex() == "b7ad6b7169203331"
    assert cut.end_time_unix_nano - cut.start_time_unix_nano == 2 * 10**9
    assert cut.status.code == cut.status.STATUS_CODE_ERROR
    said = {one.key: one.value for one in cut.attributes}
    assert said["gen_ai.usage.input_tokens"].int_value == 7
    assert said["error.type"].string_value == "engine_cut"
    assert "gen_ai.usage.output_tokens" not in said
    assert answered.status.code == answered.status.STATUS_CODE_UNSET
    assert answered.trace_id != cut.trace_id and not answered.parent_span_id


def test_a_collector_that_is_away_costs_nothing_but_spans() -> None:
    with collector() as (url, _):
        pass
    out = SpansOut(url)
    out.hear(CUT)
    out.close()

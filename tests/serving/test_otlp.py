"""OTLP at the gateway: a real instrumented client; what odd, broken and hostile senders send."""

import gzip
import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as wire

from flywheel.records import Trace, say
from serving import intake
from serving.keys import Caller
from serving.limits import Limits
from storage.committer import commit
from storage.importer import raw_row
from storage.queries import traces
from tests.serving.running import Running, running, terms
from tests.serving.scripted_upstream import upstream

JSON = {"content-type": "application/json"}
PROTOBUF = {"content_type": "application/x-protobuf"}
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, "http://127.0.0.1:9", limits=Limits(body=2**20)) as up:
        yield up


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One gateway for all that is refused and leaves nothing."""
    limits = Limits(body=2**20)
    with running(tmp_path_factory.mktemp("home"), "http://127.0.0.1:9", limits=limits) as up:
        yield up


def post(gateway: Running, content: bytes, path: str = "traces", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"{gateway.url}/v1/{path}"
    headers = {**JSON, **named}
    return httpx.post(url, content=content, headers=headers, timeout=30, verify=False)


def stored(gateway: Running) -> list[Trace]:
    commit(gateway.home)
    return [trace for batch in traces(gateway.home) for trace in batch]


def span(id: str, parent: str = "", trace: str = TRACE, **attributes: str) -> dict[str, Any]:
    pairs = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
    return {
        "traceId": trace, "spanId": id * 16, "parentSpanId": parent * 16, "name": id,
        "startTimeUnixNano": "1793000000000000000", "endTimeUnixNano": "1793000001000000000",
        "attributes": pairs,
    }  # fmt: skip


def request(*spans: dict[str, Any], service: str = "shop") -> bytes:
    named = [{"key": "service.name", "value": {"stringValue": service}}]
    scoped = [{"scope": {"name": "app"}, "spans": list(spans)}]
    resource = {"resource": {"attributes": named}, "scopeSpans": scoped}
    return json.dumps({"resourceSpans": [resource]}).encode()


def protobuf(*names: str, id: bytes = bytes(range(16))) -> bytes:
    export = wire.ExportTraceServiceRequest()
    scope = export.resource_spans.add().scope_spans.add()
    for number, name in enumerate(names, 1):
        scope.spans.add(trace_id=id, span_id=bytes([number]) * 8, name=name, start_time_unix_nano=5)
    return export.SerializeToString()


@pytest.mark.parametrize("content", ["span_only", "event_only"])
def test_an_instrumented_application_sends_its_model_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """As messages on spans, and as log records of them: the trace is the same."""
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", content)
    with upstream() as model, running(tmp_path, model.url) as gateway:
        resource = Resource.create({"service.name": "shop"})
        tracing, logging = TracerProvider(resource=resource), LoggerProvider(resource=resource)
        packed: dict[str, Any] = {"compression": Compression.Gzip}
        spans = OTLPSpanExporter(f"{gateway.url}/v1/traces", **packed)
        logs = OTLPLogExporter(f"{gateway.url}/v1/logs", **packed)
        tracing.add_span_processor(BatchSpanProcessor(spans))
        logging.add_log_record_processor(BatchLogRecordProcessor(logs))
        instrumentor = OpenAIInstrumentor()
        instrumentor.instrument(tracer_provider=tracing, logger_provider=logging)
        try:
            client = openai.OpenAI(base_url=f"{model.url}/v1", api_key="x")
            messages: Any = [{"role": "user", "content": "where is it?"}]
            with tracing.get_tracer("app").start_as_current_span("answer a ticket"):
                client.chat.completions.create(model="m", messages=messages, temperature=0.5)
                list(client.chat.completions.create(model="m", messages=messages, stream=True))
        finally:
            instrumentor.uninstrument()
            tracing.shutdown()
            logging.shutdown()
        (trace,) = stored(gateway)
    assert (trace.source, trace.origin, trace.fidelity) == ("import:shop", "import", "renderable")
    root = next(one for one in trace.spans if one.name == "answer a ticket")
    calls = [one for one in trace.spans if one.call is not None]
    assert len(calls) == 2 and len(trace.spans) == 3
    for one in calls:
        assert one.call and one.parents == (root.id,) and one.end
        assert one.call.input == (say("user", "where is it?"),)
        assert one.call.choices[0].message == say("assistant", "It is shipped.")
    assert calls[0].call and calls[0].call.usage.input_tokens == 4


def test_a_child_may_come_before_its_parent_and_both_twice(gateway: Running) -> None:
    child, parent = request(span("b", "a")), request(span("a"))
    for content in (child, parent, child, gzip.compress(parent)):
        encoding = {"content_encoding": "gzip"} if content[:2] == b"\x1f\x8b" else {}
        answer = post(gateway, content, **encoding)
        assert (answer.status_code, answer.json()) == (200, {})
    (trace,) = stored(gateway)
    assert {one.id: one.parents for one in trace.spans} == {
        "b" * 16: ("a" * 16,),
        "a" * 16: (),
    }
    assert gateway.gateway.recording.counts["otlp_repeated"] == 1
    assert trace.raw and json.loads(raw_row(gateway.home, trace.raw))["resourceSpans"]


def test_a_retry_after_a_restart_counts_once(tmp_path: Path) -> None:
    for _ in range(2):
        with running(tmp_path, "http://127.0.0.1:9") as gateway:
            assert post(gateway, request(span("a"))).status_code == 200
            found = stored(gateway)
    assert [len(trace.spans) for trace in found] == [1]


def test_requests_at_one_time_share_segments_and_none_is_lost(gateway: Running) -> None:
    contents = [request(span("a", trace=f"{number:032x}")) for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        assert all(one.status_code == 200 for one in pool.map(lambda c: post(gateway, c), contents))
    assert len(list(gateway.home.inbox.glob("*.segment"))) <= 24
    assert {trace.external_id for trace in stored(gateway)} == {f"{n:032x}" for n in range(24)}


def test_what_cannot_be_understood_is_told_and_the_rest_stands(gateway: Running) -> None:
    bad = {**span("c"), "traceId": None}
    answer = post(gateway, request(span("a"), bad, span("b")))
    partial = answer.json()["partialSuccess"]
    assert answer.status_code == 200 and partial["rejectedSpans"] == "1"
    assert "traceId" in partial["errorMessage"]
    again = wire.ExportTraceServiceResponse.FromString(
        post(gateway, protobuf("x", id=b""), **PROTOBUF).content
    )
    assert again.partial_success.rejected_spans == 1
    assert [len(trace.spans) for trace in stored(gateway)] == [2]
    assert list(gateway.home.quarantine.glob("otlp-*.jsonl"))


def test_protobuf_is_answered_in_protobuf(gateway: Running) -> None:
    answer = post(gateway, protobuf("one", "two"), **PROTOBUF)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "application/x-protobuf"
    (trace,) = stored(gateway)
    assert trace.source == "import:otlp" and {one.name for one in trace.spans} == {"one", "two"}


def test_an_applications_other_logs_are_left_out_and_said_so(gateway: Running) -> None:
    plain = {"body": {"stringValue": "started"}, "timeUnixNano": "5"}
    ours = {**plain, "traceId": TRACE, "spanId": "a" * 16, "eventName": "note"}
    logs = [{"scopeLogs": [{"logRecords": [plain, ours, plain]}]}]
    answer = post(gateway, json.dumps({"resourceLogs": logs}).encode(), "logs")
    assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "2"
    (trace,) = stored(gateway)
    assert len(trace.spans) == 1 and not gateway.home.quarantine.exists()
    nothing = [{"scopeLogs": [{"logRecords": [plain]}]}]
    answer = post(gateway, json.dumps({"resourceLogs": nothing}).encode(), "logs")
    assert answer.status_code == 200 and "no span" in answer.text
    assert ExportLogsServiceResponse().SerializeToString() == b""


@pytest.mark.parametrize("content", [b"{}", b'{"resourceSpans": []}'])
def test_nothing_is_taken_as_nothing(standing: Running, content: bytes) -> None:
    assert post(standing, content).json() == {}
    assert post(standing, b"", **PROTOBUF).status_code == 200
    assert not standing.home.inbox.exists()


BOMB, SMALL_BOMB = gzip.compress(bytes(2**23)), gzip.compress(bytes(2**19))
WRONG: dict[str, tuple[bytes, dict[str, str], int]] = {
    "no json": (b"{", {}, 400),
    "no object": (b"[1, 2]", {}, 400),
    "another list": (b'{"resourceSpans": 5}', {}, 400),
    "empty": (b"", {}, 400),
    "deep": (b'{"resourceSpans": [' + b"[" * 5000 + b"]" * 5000 + b"]}", {}, 400),
    "no protobuf": (b"hello there", PROTOBUF, 400),
    "cut protobuf": (protobuf("a", "b")[:-3], PROTOBUF, 400),
    "endless size": (b"\x0a" + b"\xff" * 40, PROTOBUF, 400),
    "a larger size": (b"\x0a\xff\xff\xff\xff\x7f", PROTOBUF, 400),
    "another type": (b"a=b", {"content_type": "text/plain"}, 415),
    "another packing": (b"x", {"content_encoding": "br"}, 415),
    "no gzip": (b"hello", {"content_encoding": "gzip"}, 400),
    "cut gzip": (gzip.compress(request(span("a")))[:-9], {"content_encoding": "gzip"}, 400),
    "gzip bomb": (BOMB, {"content_encoding": "gzip"}, 413),
    "many small bombs": (SMALL_BOMB * 5, {"content_encoding": "gzip"}, 413),
    "large": (bytes(2**20 + 1), {}, 413),
    "other project": (request(span("a")), {"x_flywheel_project": "other"}, 404),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_export_request_is_refused_in_its_own_shape(
    standing: Running, name: str
) -> None:
    content, headers, status = WRONG[name]
    answer = post(standing, content, **headers)
    assert answer.status_code == status, answer.text
    if answer.headers["content-type"] == "application/json":
        assert set(answer.json()) == {"code", "message"}
    else:
        from google.rpc.status_pb2 import Status

        assert Status.FromString(answer.content).message
    assert not standing.home.inbox.exists() and not standing.home.quarantine.exists()


def test_too_much_at_one_time_is_told_to_come_again(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_WAITING", 1)
    held = threading.Event()
    gateway.gateway.intake._thread.submit(held.wait)
    contents = [request(span("a", trace=f"{number:032x}")) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(post, gateway, content) for content in contents]
        refused = [one.result() for one in itertools.islice(as_completed(answers), 7)]
        held.set()
    assert {one.status_code for one in refused} == {429}
    assert all(int(one.headers["retry-after"]) for one in refused)
    assert len(stored(gateway)) == 1


def test_what_cannot_be_written_is_not_said_to_be_taken(gateway: Running) -> None:
    gateway.home.inbox.write_text("no folder can be made here")
    answer = post(gateway, request(span("a")))
    assert answer.status_code == 503 and answer.headers["retry-after"]
    gateway.home.inbox.unlink()
    assert post(gateway, request(span("a"))).status_code == 200
    assert len(stored(gateway)) == 1


def test_of_several_projects_the_sender_or_its_key_says_which(tmp_path: Path) -> None:
    from serving.otlp import Otlp

    projects = frozenset({"support", "sales"})
    with running(tmp_path, "http://127.0.0.1:9", projects=projects) as gateway:
        assert post(gateway, request(span("a"))).status_code == 400
        assert post(gateway, request(span("a")), x_flywheel_project="sales").status_code == 200
        assert [trace.project for trace in stored(gateway)] == ["sales"]
        otlp: Otlp = gateway.gateway.otlp
        only = Caller(projects=frozenset({"support"}))
        assert otlp._project({}, only) == "support"
        with pytest.raises(Exception, match="one of"):
            otlp._project({b"x-flywheel-project": b"sales"}, only)


def test_what_a_project_redacts_is_in_no_file_and_spans_still_hang_together(
    tmp_path: Path,
) -> None:
    secret = "4111 1111 1111 1111"
    rules = [{"pattern": r"\d{4} ?\d{4} ?\d{4} ?\d{4}"}]
    messages = json.dumps([{"role": "user", "parts": [{"type": "text", "content": secret}]}])
    asked = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages}
    child, parent = span("b", "a"), span("a", note=f"paid by {secret}")
    child["attributes"] = span("b", **asked)["attributes"]
    child["traceId"] = parent["traceId"] = "4111111111111111" * 2
    said = terms(capture={"redact": rules})
    with running(tmp_path, "http://127.0.0.1:9", terms=said) as gateway:
        assert post(gateway, request(child, parent)).status_code == 200
        (trace,) = stored(gateway)
    assert trace.external_id == child["traceId"] and len(trace.spans) == 2
    assert {one.start for one in trace.spans} == {1_793_000_000_000_000_000}
    call = next(one.call for one in trace.spans if one.call)
    assert call.input == (say("user", "[redacted]"),)
    raw = raw_row(gateway.home, trace.raw or "")
    assert secret.encode() not in raw and raw.count(b"[redacted]") == 2


def test_whoever_an_id_names_stays_apart_from_another_and_in_no_file(tmp_path: Path) -> None:
    def told(letter: str, mail: str) -> dict[str, Any]:
        said = json.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": f"I am {mail}"}]}]
        )
        asked = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": said}
        one = span(letter, **asked, **{"gen_ai.conversation.id": mail, "user.id": mail})
        return one | {"traceId": letter * 32}

    mails = ("ann@example.com", "bob@example.com")
    with running(
        tmp_path, "http://127.0.0.1:9", terms=terms(privacy={"at": ["capture"]})
    ) as gateway:
        spans = [told(letter, mail) for letter, mail in zip("ab", mails, strict=True)]
        assert post(gateway, request(*spans)).status_code == 200
        one, two = stored(gateway)
    assert str(one.user).startswith("redacted-") and str(two.user).startswith("redacted-")
    assert one.user != two.user and one.conversation != two.conversation
    for trace in (one, two):
        (call,) = [one.call for one in trace.spans if one.call]
        assert call.input == (say("user", "I am [EMAIL_1]"),)
    assert not any(mail.encode() in raw_row(gateway.home, one.raw or "") for mail in mails)

"""OTLP/JSON: three ways to write messages, events, trees in any order, tools, errors, bad spans."""

import base64
import json
from typing import Any

import msgspec

from flywheel.records import Image, Text, ToolCall, ToolResult, Usage, say, trace_id
from storage.formats.otlp_span import any_value
from storage.merge import merge

T, S = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def value(plain: Any) -> dict[str, Any]:
    if isinstance(plain, bool):
        return {"boolValue": plain}
    if isinstance(plain, int):
        return {"intValue": str(plain)}
    if isinstance(plain, float):
        return {"doubleValue": plain}
    if isinstance(plain, list):
        return {"arrayValue": {"values": [value(one) for one in plain]}}
    if isinstance(plain, dict):
        return {"kvlistValue": {"values": listed(plain)}}
    return {"stringValue": plain}


def listed(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(one)} for key, one in attributes.items()]


def span(attributes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "traceId": T,
        "spanId": S,
        "name": "chat m",
        "startTimeUnixNano": "1793500000000000000",
        "endTimeUnixNano": "1793500001000000000",
        "attributes": listed(attributes or {}),
        **more,
    }


def document(*spans: Any, service: str | None = "shop") -> dict[str, Any]:
    resource = {"attributes": listed({"service.name": service} if service else {})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}


ASKED = [
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]

NEWEST = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.response.model": "m-1",
    "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.usage.input_tokens": 12,
    "gen_ai.usage.output_tokens": 3,
    "gen_ai.input.messages": json.dumps(
        [
            {"role": "user", "parts": [{"type": "text", "content": "weather?"}]},
            {
                "role": "assistant",
                "parts": [{"type": "tool_call", "id": "c1", "name": "w", "arguments": {}}],
            },
            {
                "role": "tool",
                "parts": [{"type": "tool_call_response", "id": "c1", "response": "rain"}],
            },
        ]
    ),
    "gen_ai.output.messages": json.dumps(
        [{"role": "assistant", "parts": [{"type": "text", "content": "wet"}]}]
    ),
}
INDEXED = {
    "llm.request.type": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.response.model": "m-1",
    "gen_ai.usage.prompt_tokens": 12,
    "gen_ai.usage.completion_tokens": 3,
    "llm.usage.total_tokens": 15,
    "gen_ai.prompt.1.role": "assistant",
    "gen_ai.prompt.1.tool_calls.0.id": "c1",
    "gen_ai.prompt.1.tool_calls.0.name": "w",
    "gen_ai.prompt.1.tool_calls.0.arguments": "{}",
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "weather?",
    "gen_ai.prompt.2.role": "tool",
    "gen_ai.prompt.2.tool_call_id": "c1",
    "gen_ai.prompt.2.content": "rain",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "wet",
    "gen_ai.completion.0.finish_reason": "stop",
}
INFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.request.model_name": "m",
    "llm.response.model_name": "m-1",
    "llm.finish_reason": "stop",
    "llm.token_count.prompt": 12,
    "llm.token_count.completion": 3,
    "llm.token_count.total": 15,
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": "weather?",
    "llm.input_messages.1.message.role": "assistant",
    "llm.input_messages.1.message.tool_calls.0.tool_call.id": "c1",
    "llm.input_messages.1.message.tool_calls.0.tool_call.function.name": "w",
    "llm.input_messages.1.message.tool_calls.0.tool_call.function.arguments": "{}",
    "llm.input_messages.2.message.role": "tool",
    "llm.input_messages.2.message.tool_call_id": "c1",
    "llm.input_messages.2.message.content": "rain",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "wet",
}


def call_of(parsed: Any) -> Any:
    (trace,) = parsed.traces
    (one,) = trace.spans
    assert one.kind == "model"
    return one.call


def test_every_convention_and_an_openai_log_give_the_same_messages(read):
    row = {
        "request": {"model": "m", "messages": ASKED},
        "response": {
            "choices": [
                {"message": {"role": "assistant", "content": "wet"}, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 12, "completion_tokens": 3},
        },
    }
    log = call_of(read("openai_chat", row))
    for attributes in (NEWEST, INDEXED, INFERENCE):
        parsed = read("otlp", document(span(attributes)))
        call = call_of(parsed)
        assert (call.input, call.choices, call.usage) == (log.input, log.choices, log.usage)
        assert (call.model, call.response_model) == ("m", "m-1")
        assert parsed.unmapped == {}


def test_message_events_of_a_span_are_its_messages(read):
    def event(name: str, **attributes: Any) -> dict[str, Any]:
        return {
            "name": name,
            "timeUnixNano": "1793500000000000000",
            "attributes": listed(attributes),
        }

    events = [
        event("gen_ai.system.message", content="be kind"),
        event("gen_ai.user.message", content="hi"),
        event(
            "gen_ai.choice", index=0, finish_reason="stop", message=json.dumps({"content": "hello"})
        ),
        event("first token"),
    ]
    asked = {"gen_ai.operation.name": "chat"}
    parsed = read("otlp", document(span(asked, events=events)))
    call = call_of(parsed)
    assert call.input == (say("system", "be kind"), say("user", "hi"))
    assert call.choices[0].message == say("assistant", "hello")
    assert call.choices[0].finish_reason == "stop"
    assert parsed.unmapped == {"events.first token": 1}
    assert [one["name"] for one in parsed.traces[0].spans[0].attributes["events"]] == [
        "first token"
    ]


def test_message_events_as_log_records_and_their_span_are_one_in_any_order(read):
    def record(name: str, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "traceId": T,
            "spanId": S,
            "timeUnixNano": "1793500000000000000",
            "body": value(body),
            "attributes": listed({"event.name": name}),
        }

    records = [
        record("gen_ai.user.message", {"content": "hi"}),
        record(
            "gen_ai.choice",
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}},
        ),
    ]
    resource = {"attributes": listed({"service.name": "shop"})}
    logs = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": records}]}]}
    (heard,) = read("otlp", logs).traces
    assert heard.id == trace_id("p", "import:shop", T)
    told = span({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3,
                 "gen_ai.usage.output_tokens": 2})  # fmt: skip
    (timed,) = read("otlp", document(told)).traces
    one, other = merge(merge(None, heard), timed), merge(merge(None, timed), heard)
    assert one.spans == other.spans
    (both,) = one.spans
    assert (both.id, both.name, both.start, both.parents) == (
        S, timed.spans[0].name, timed.spans[0].start, timed.spans[0].parents
    )  # fmt: skip
    assert both.call.input == (say("user", "hi"),) and both.call.usage.input_tokens == 3
    (choice,) = both.call.choices
    assert (choice.message, choice.finish_reason) == (say("assistant", "a"), "stop")


def test_log_records_that_are_no_messages_are_a_child_of_their_span(read):
    record = {"traceId": T, "spanId": S, "timeUnixNano": "5", "body": {"stringValue": "retrying"}}
    logs = {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": [record]}]}]}
    (trace,) = read("otlp", logs).traces
    (one,) = trace.spans
    assert (one.id, one.parents, one.call) == (f"{S}:events", (S,), None)
    assert one.attributes["events"][0]["body"] == "retrying"


def test_system_instructions_and_tool_definitions_are_read(read):
    attributes = {
        **NEWEST,
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "be kind"}]),
        "gen_ai.tool.definitions": json.dumps(
            [{"type": "function", "name": "w", "parameters": {}}]
        ),
    }
    call = call_of(read("otlp", document(span(attributes))))
    assert call.input[0] == say("system", "be kind")
    assert call.tools == ({"type": "function", "function": {"name": "w", "parameters": {}}},)


def test_structured_attributes_are_read_like_json_text(read):
    attributes = {**NEWEST, "gen_ai.input.messages": json.loads(NEWEST["gen_ai.input.messages"])}
    plain = call_of(read("otlp", document(span(NEWEST))))
    assert call_of(read("otlp", document(span(attributes)))) == plain


def test_parts_by_uri_and_blob_are_images(read, kept):
    parts = [
        {"type": "uri", "modality": "image", "uri": "https://example.org/a.png"},
        {"type": "blob", "modality": "image", "mime_type": "image/png",
         "content": base64.b64encode(b"png").decode()},
    ]  # fmt: skip
    asked = json.dumps([{"role": "user", "parts": parts}])
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": asked}
    linked, blob = call_of(read("otlp", document(span(attributes)))).input[0].parts
    assert linked == Image(url="https://example.org/a.png")
    assert isinstance(blob, Image) and kept[blob.digest] == b"png"


def test_indexed_content_that_is_a_list_of_parts_is_taken_apart(read):
    parts = json.dumps([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    attributes = {"llm.request.type": "chat", "gen_ai.prompt.0.content": parts}
    call = call_of(read("otlp", document(span(attributes))))
    assert call.input[0].parts == (Text(text="a"), Text(text="b"))


def test_cached_tokens_are_inside_the_prompt_unless_they_cannot_be(read):
    inside = {**NEWEST, "gen_ai.usage.cache_read.input_tokens": 10}
    beside = {
        **NEWEST,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 90,
    }
    first = call_of(read("otlp", document(span(inside)))).usage
    assert first == Usage(input_tokens=12, cached_input_tokens=10, output_tokens=3)
    assert call_of(read("otlp", document(span(beside)))).usage.input_tokens == 100


def test_a_tool_span_is_the_call_as_it_was_run(read):
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "w",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.call.arguments": '{"city": "Oslo"}',
        "gen_ai.tool.call.result": "rain",
    }
    (trace,) = read("otlp", document(span(attributes))).traces
    (one,) = trace.spans
    assert one.kind == "tool"
    assert one.tool == ToolCall(name="w", arguments='{"city": "Oslo"}', id="c1")
    assert one.result == ToolResult(content="rain", id="c1", name="w")


def test_trees_links_conversations_and_services(read):
    child = span(NEWEST, spanId="00f067aa0ba902b7", parentSpanId=S)
    child["links"] = [
        {"traceId": T, "spanId": "1111111111111111"},
        {"traceId": "f" * 32, "spanId": "2222222222222222"},
    ]
    root = span({"gen_ai.operation.name": "invoke_agent", "gen_ai.conversation.id": "c9",
                 "user.id": "u1"})  # fmt: skip
    (trace,) = read("otlp", document(child, root)).traces
    assert (trace.source, trace.conversation, trace.user) == ("import:shop", "c9", "u1")
    first, second = trace.spans
    assert first.parents == (S, "1111111111111111") and second.parents == ()
    assert second.kind == "agent"
    assert "links[1]" in first.attributes
    assert read("otlp", document(root, service=None)).traces[0].source == "import:otlp"


def test_a_child_whose_parent_is_elsewhere_is_kept(read):
    (trace,) = read("otlp", document(span(NEWEST, parentSpanId="00f067aa0ba902b7"))).traces
    assert trace.spans[0].parents == ("00f067aa0ba902b7",)


def test_errors_are_taken_from_the_status_or_the_exception(read):
    said = span(NEWEST, status={"code": 2, "message": "429"})
    assert read("otlp", document(said)).traces[0].spans[0].error == "429"
    event = {"name": "exception", "attributes": listed({"exception.message": "boom"})}
    thrown = span(NEWEST, status={"code": "STATUS_CODE_ERROR"}, events=[event])
    assert read("otlp", document(thrown)).traces[0].spans[0].error == "boom"
    assert read("otlp", document(span(NEWEST, status={"code": 1}))).traces[0].spans[0].error is None


def test_a_bad_span_is_rejected_alone_and_named(read):
    parsed = read("otlp", document(span(NEWEST), {"spanId": S}, 7))
    assert len(parsed.traces) == 1
    fields = [error.field for error in parsed.rejects]
    assert fields == [
        "resourceSpans[0].scopeSpans[0].spans[1].traceId",
        "resourceSpans[0].scopeSpans[0].spans[2]",
    ]


def test_messages_that_cannot_be_read_stay_attributes(read):
    attributes = {**NEWEST, "gen_ai.input.messages": '[{"parts": "half'}
    parsed = read("otlp", document(span(attributes)))
    assert call_of(parsed).input == ()
    assert parsed.traces[0].spans[0].attributes["gen_ai.input.messages"] == '[{"parts": "half'
    assert parsed.unmapped == {"attributes.gen_ai.input.messages": 1}


def test_other_attributes_are_kept_and_counted(read):
    attributes = {**NEWEST, "server.address": "a", "gen_ai.request.reasoning_effort": "low"}
    parsed = read("otlp", document(span(attributes)))
    assert parsed.unmapped == {"attributes.server.address": 1}
    assert parsed.traces[0].spans[0].attributes == {"server.address": "a"}
    assert call_of(parsed).sampling.other == {"reasoning_effort": "low"}


def test_ids_in_base64_are_the_ids_in_hex(read):
    encoded = span(NEWEST)
    encoded["traceId"] = base64.b64encode(bytes.fromhex(T)).decode()
    encoded["spanId"] = base64.b64encode(bytes.fromhex(S)).decode()
    (trace,) = read("otlp", document(encoded)).traces
    assert (trace.external_id, trace.spans[0].id) == (T, S)


def test_typed_values_come_back_plain():
    plain = {"a": [1, "x", True, 0.5], "b": {"c": "d"}}
    assert any_value(value(plain)) == plain
    assert any_value({}) is None and any_value({"intValue": "much"}) == "much"


def test_a_record_of_any_span_can_be_stored(read):
    (trace,) = read("otlp", document(span({**NEWEST, "deep": [[["x"]]]}))).traces
    assert msgspec.json.decode(msgspec.json.encode(trace), type=type(trace)) == trace

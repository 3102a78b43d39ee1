"""OpenAI chat rows: messages, calls, usage, errors, streams, identity, feedback."""

from typing import Any

import pytest

from flywheel.errors import BadRecord
from flywheel.records import (
    Image,
    Message,
    ModelCall,
    Reasoning,
    Refusal,
    Text,
    Tokens,
    ToolCall,
    ToolResult,
    Truncated,
    Usage,
    say,
    trace_id,
)

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def row(*messages: Any, **response: Any) -> dict[str, Any]:
    return {
        "request": {
            "model": "m",
            "messages": list(messages) or [{"role": "user", "content": "hi"}],
        },
        "response": {
            "id": "chatcmpl-1",
            "model": "m-2024",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}}],
            **response,
        },
    }


def answer(message: Any, **choice: Any) -> dict[str, Any]:
    return row(choices=[{"index": 0, "message": message, **choice}])


def call_of(parsed: Any) -> ModelCall:
    (trace,) = parsed.traces
    (span,) = trace.spans
    assert span.call is not None
    return span.call


def test_a_bench_row_fills_every_field(read):
    parsed = read(
        "openai_chat",
        {
            "trace_id": "t1",
            "span_id": "s1",
            "session_id": "c1",
            "start_ns": 1_793_500_000_000_000_000,
            "end_ns": 1_793_500_001_000_000_000,
            "model": "support-7b-v2",
            "request": {
                "model": "support-7b",
                "messages": [{"role": "user", "content": "where?"}],
                "temperature": 0.2,
                "max_tokens": 256,
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "presence_penalty": 1,
            },
            "response": {
                "id": "chatcmpl-9",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "there"},
                        "finish_reason": "stop",
                    }
                ],
                "usage": {"prompt_tokens": 20, "completion_tokens": 5},
            },
            "feedback": -1,
        },
    )
    (trace,) = parsed.traces
    (span,) = trace.spans
    assert trace.id == trace_id("p", "import:openai_chat", "t1") and trace.origin == "import"
    assert (trace.external_id, trace.conversation, trace.raw) == ("t1", "c1", "raw")
    assert (span.id, span.kind, span.error) == ("s1", "model", None)
    assert span.end - span.start == 10**9
    call = call_of(parsed)
    assert call.input == (say("user", "where?"),)
    assert call.choices[0].message == say("assistant", "there")
    assert call.choices[0].finish_reason == "stop"
    assert call.usage == Usage(input_tokens=20, output_tokens=5)
    assert (call.sampling.temperature, call.sampling.max_tokens) == (0.2, 256)
    assert call.sampling.other == {"presence_penalty": 1}
    assert call.tools == ({"type": "function", "function": {"name": "f"}},)
    assert span.attributes["response_id"] == "chatcmpl-9"
    (feedback,) = parsed.feedback
    assert (feedback.target, feedback.value, feedback.kind) == (trace.id, -1, "number")
    assert feedback.at == span.end
    assert parsed.unmapped == {}


def test_null_content_stays_distinct_from_empty_text(read):
    null = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    empty = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    first = call_of(read("openai_chat", answer(null))).choices[0].message
    second = call_of(read("openai_chat", answer(empty))).choices[0].message
    call = ToolCall(name="f", arguments='{"a": 1}', id="call_1")
    assert first.parts == (call,)
    assert second.parts == (Text(text=""), call)


def test_tool_results_keep_the_id_of_their_call(read):
    call = call_of(
        read(
            "openai_chat",
            row(
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "42"},
                {"role": "function", "name": "f", "content": "43"},
            ),
        )
    )
    assert call.input[1].parts == (ToolResult(content="42", id="call_1"),)
    assert call.input[2] == Message(role="tool", parts=(ToolResult(content="43", name="f"),))


def test_legacy_function_calls_refusals_and_reasoning_are_parts(read):
    legacy = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "f", "arguments": "{"},
    }
    refused = {"role": "assistant", "content": None, "refusal": "no"}
    thought = {"role": "assistant", "content": "4", "reasoning_content": "2+2"}

    def parts(message: Any) -> Any:
        return call_of(read("openai_chat", answer(message))).choices[0].message.parts

    assert parts(legacy) == (ToolCall(name="f", arguments="{"),)
    assert parts(refused) == (Refusal(text="no"),)
    assert parts(thought) == (Reasoning(text="2+2"), Text(text="4"))


def test_a_base64_image_is_kept_as_bytes(read, kept):
    content = [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
    ]
    parsed = read("openai_chat", row({"role": "user", "content": content}))
    text, image, linked = call_of(parsed).input[0].parts
    assert text == Text(text="what?")
    assert isinstance(image, Image) and kept[image.digest] == b"hello"
    assert image.media_type == "image/png"
    assert linked == Image(url="https://example.org/a.png")
    assert parsed.unmapped == {"request.messages[].content[].image.detail": 1}


def test_a_three_megabyte_tool_output_is_cut_and_kept_whole_beside(read, kept):
    big = "é" * 1_500_000
    parsed = read("openai_chat", row({"role": "tool", "tool_call_id": "call_1", "content": big}))
    result, cut = call_of(parsed).input[0].parts
    assert isinstance(result, ToolResult) and result.id == "call_1"
    assert isinstance(cut, Truncated) and cut.size == 3_000_000
    assert kept[cut.digest].decode() == big and big.startswith(result.content) and result.content


def test_a_six_megabyte_data_image_is_kept(read, kept):
    url = "data:image/png;base64," + "AAAA" * 1_500_000
    image = {"type": "image_url", "image_url": {"url": url}}
    parsed = read("openai_chat", row({"role": "user", "content": [image]}))
    (part,) = call_of(parsed).input[0].parts
    assert isinstance(part, Image) and part.url is None
    assert len(kept[part.digest]) == 4_500_000


def test_zeros_beside_an_answer_are_unknown(read):
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    usage = call_of(read("openai_chat", row(usage=zeros))).usage
    assert (usage.input_tokens, usage.output_tokens) == (None, None)
    assert usage.reason == "reported as zero beside an answer"
    assert call_of(read("openai_chat", row())).usage == Usage(reason="not reported")


def test_an_empty_finish_reason_is_none(read):
    said = {"role": "assistant", "content": "x"}
    assert (
        call_of(read("openai_chat", answer(said, finish_reason=""))).choices[0].finish_reason
        is None
    )


def test_an_answer_from_a_cache_costs_nothing_and_keeps_its_tokens(read):
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "cost": 0.5}
    call = call_of(read("openai_chat", {**row(usage=usage), "cache_hit": True}))
    assert (call.cached, call.cost_usd, call.usage.input_tokens) == (True, 0.0, 9)
    assert call_of(read("openai_chat", row(usage=usage))).cost_usd == 0.5


def test_a_failed_request_is_a_span_with_its_error(read):
    failed = {**row(), "response": {"error": {"message": "no such model", "code": 404}}}
    (trace,) = read("openai_chat", failed).traces
    assert trace.spans[0].error == "no such model"
    assert trace.spans[0].call.choices == ()


def test_fields_that_no_record_holds_are_kept_and_counted(read):
    odd = row(system_fingerprint="fp", usage={"prompt_tokens": 1, "completion_tokens": 1, "x": 7})
    odd["team"] = {"name": "a"}
    odd["request"]["messages"][0]["weight"] = 0.5
    parsed = read("openai_chat", odd)
    assert parsed.unmapped == {
        "team": 1,
        "request.messages[].weight": 1,
        "response.system_fingerprint": 1,
        "response.usage.x": 1,
    }
    attributes = parsed.traces[0].spans[0].attributes
    assert attributes["team"] == {"name": "a"}
    assert attributes["request.messages[0].weight"] == 0.5


def test_two_calls_under_one_response_id_are_two_spans_of_one_trace(read):
    first = read("openai_chat", row({"role": "user", "content": "a"})).traces[0]
    second = read("openai_chat", row({"role": "user", "content": "b"})).traces[0]
    assert first.id == second.id and first.spans[0].id != second.spans[0].id


def test_a_row_without_any_id_is_named_by_its_content(read):
    plain = {"request": row()["request"], "response": {"choices": row()["response"]["choices"]}}
    same = read("openai_chat", {**plain, "note": "elsewhere"}).traces[0]
    assert read("openai_chat", plain).traces[0].id == same.id


def test_token_ids_of_the_engine_become_the_second_stream(read):
    said = {"role": "assistant", "content": "ok"}
    logprobs = {"content": [{"token": "ok", "logprob": -0.5}, {"token": "", "logprob": -0.1}]}
    given = answer(said, token_ids=[7, 2], logprobs=logprobs)
    given["response"]["prompt_token_ids"] = [1, 5]
    parsed = read("openai_chat", given)
    tokens = call_of(parsed).choices[0].tokens
    assert tokens == Tokens(prompt_ids=(1, 5), completion_ids=(7, 2), logprobs=(-0.5, -0.1))
    assert parsed.unmapped == {}


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"request": {"messages": "hi"}}, "request.messages", "is text, not a list of messages"),
        ({"request": {"messages": [5]}}, "request.messages[0]", "is a number, not a message"),
        ({"request": {"messages": [{}]}}, "request.messages[0].role", "is null, not a role"),
        ({"response": [1]}, "response", "holds no chunk of a chat completion"),
        ({"response": {"choices": {}}}, "response.choices", "is an object, not a list"),
        ({"response": "never"}, "response", "is text, neither JSON nor a stream"),
    ],
)
def test_wrong_types_name_the_field(read, change, field, reason):
    with pytest.raises(BadRecord) as caught:
        read("openai_chat", {**row(), **change})
    assert (caught.value.field, caught.value.reason) == (field, reason)


def test_a_response_by_itself_and_a_request_without_one_are_kept(read):
    alone = {"object": "chat.completion", **row()["response"]}
    call = call_of(read("openai_chat", alone))
    assert call.input == () and call.tools is None
    (trace,) = read("openai_chat", {"request": row()["request"]}).traces
    assert trace.spans[0].error == "no response was recorded"


def test_anthropic_rows_are_not_taken_for_openai(read):
    from storage.formats import FORMATS

    theirs = {
        "request": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
        "response": {"type": "message", "content": [{"type": "text", "text": "x"}]},
    }
    assert not FORMATS["openai_chat"].recognise(theirs)
    events = {**theirs, "response": 'event: message_start\ndata: {"type":"message_start"}\n'}
    assert not FORMATS["openai_chat"].recognise(events)

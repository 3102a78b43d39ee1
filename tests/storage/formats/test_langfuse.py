"""Langfuse exports: encodings, frameworks' forms, usage, scores, what is not understood."""

import json
from typing import Any

import pytest

from flywheel.records import Text, ToolCall, ToolResult, Unknown, Usage, say, trace_id


def observation(**more: Any) -> dict[str, Any]:
    return {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "name": "chat",
        "startTime": "2025-06-11T14:01:32.598Z",
        "endTime": "2025-06-11T14:01:33.598Z",
        "parentObservationId": None,
        "level": "DEFAULT",
        "model": "m",
        "modelParameters": {"temperature": 0.5, "max_tokens": -1},
        "input": json.dumps([{"role": "user", "content": "hi"}]),
        "output": json.dumps({"role": "assistant", "content": "hello"}),
        "usageDetails": {"input": 5, "output": 2, "total": 7},
        "totalCost": 0.25,
        "updatedAt": "2025-06-11T14:01:39.331Z",
        "metadata": "{}",
        **more,
    }


def export(*observations: Any, **head: Any) -> dict[str, Any]:
    return {
        "trace": {"id": "t1", "sessionId": "c1", "userId": "u1", "scores": [], **head},
        "observations": list(observations),
    }


def choice_of(parsed: Any) -> Any:
    return parsed.traces[0].spans[0].call.choices[0]


def test_a_generation_becomes_a_model_call(read):
    parsed = read("langfuse", export(observation()))
    (trace,) = parsed.traces
    (span,) = trace.spans
    assert trace.id == trace_id("p", "import:langfuse", "t1")
    assert (trace.conversation, trace.user) == ("c1", "u1")
    assert (span.kind, span.end - span.start, span.version) == ("model", 10**9, 1749650499331)
    call = span.call
    assert call.input == (say("user", "hi"),)
    assert call.choices[0].message == say("assistant", "hello")
    assert call.usage == Usage(input_tokens=5, output_tokens=2)
    assert (call.model, call.cost_usd) == ("m", 0.25)
    assert (call.sampling.temperature, call.sampling.max_tokens) == (0.5, None)
    assert parsed.unmapped == {}


OUTPUTS: list[tuple[Any, tuple[Any, ...]]] = [
    ("plain", (Text(text="plain"),)),
    (json.dumps(json.dumps({"role": "assistant", "content": "twice"})), (Text(text="twice"),)),
    ({"choices": [{"message": {"role": "assistant", "content": "a"}}]}, (Text(text="a"),)),
    ([{"role": "assistant", "parts": [{"type": "text", "content": "b"}]}], (Text(text="b"),)),
    ({"index": 0, "message": {"role": "assistant", "content": "c"}}, (Text(text="c"),)),
    ({"content": {"parts": [{"text": "d"}], "role": "model"}}, (Text(text="d"),)),
    ({"candidates": [{"content": {"parts": [{"text": "e"}]}}]}, (Text(text="e"),)),
    (
        [{"toolCallId": "c1", "toolName": "f", "input": '{"x":1}'}],
        (ToolCall(name="f", arguments='{"x":1}', id="c1"),),
    ),
    (
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
        },
        (ToolCall(name="f", arguments="{}", id="c"),),
    ),
    (
        {
            "object": "response",
            "output": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}],
        },
        (ToolCall(name="f", arguments="{}", id="c"),),
    ),
    (
        {
            "role": "assistant",
            "content": "",
            "additional_kwargs": {
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]
            },
        },
        (Text(text=""), ToolCall(name="f", arguments="{}", id="c")),
    ),
]


@pytest.mark.parametrize(("output", "parts"), OUTPUTS)
def test_outputs_of_every_framework_are_messages(read, output, parts):
    message = choice_of(read("langfuse", export(observation(output=output)))).message
    assert (message.role, message.parts) == ("assistant", parts)


def test_what_is_no_message_is_kept_whole(read):
    odd = {"answer": {"deep": [1]}}
    message = choice_of(read("langfuse", export(observation(output=odd)))).message
    assert message.parts == (Unknown(kind="value", raw=odd),)


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        (None, ()),
        ("do it", (say("user", "do it"),)),
        ({"prompt": "p", "system": "s"}, (say("system", "s"), say("user", "p"))),
        ({"messages": [{"role": "user", "content": "m"}]}, (say("user", "m"),)),
        ({"contents": "g", "config": {"system_instruction": "s"}},
         (say("system", "s"), say("user", "g"))),
        ({"contents": [{"role": "user", "parts": [{"text": "g"}]}]}, (say("user", "g"),)),
    ],
)  # fmt: skip
def test_inputs_of_every_framework_are_messages(read, given, messages):
    parsed = read("langfuse", export(observation(input=given)))
    assert parsed.traces[0].spans[0].call.input == messages


def test_parts_counted_beside_their_totals_are_added(read):
    details = {"input": 179, "output": 35, "total": 278, "output_reasoning": 64,
               "input_cache_read": 0}  # fmt: skip
    usage = (
        read("langfuse", export(observation(usageDetails=details))).traces[0].spans[0].call.usage
    )
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens) == (179, 99, 64)
    cached = {"input": 10, "input_cached_tokens": 90, "output": 5, "total": 105}
    usage = read("langfuse", export(observation(usageDetails=cached))).traces[0].spans[0].call.usage
    assert (usage.input_tokens, usage.cached_input_tokens) == (100, 90)


def test_no_usage_and_no_cost_are_unknown(read):
    bare = observation(usageDetails={}, inputUsage=0, outputUsage=0, totalCost=0)
    call = read("langfuse", export(bare)).traces[0].spans[0].call
    assert call.usage.input_tokens is None and call.cost_usd is None


def test_tools_and_errors_are_spans(read):
    tool = observation(id="o2", type="TOOL", name="w", input='{"x": 1}', output='"rain"',
                       parentObservationId="o1", level="ERROR", statusMessage="late")  # fmt: skip
    span = read("langfuse", export(tool)).traces[0].spans[0]
    assert (span.kind, span.parents, span.error) == ("tool", ("o1",), "late")
    assert span.tool == ToolCall(name="w", arguments='{"x":1}')
    assert span.result == ToolResult(content="rain", name="w")


def test_a_big_tool_output_is_cut_and_kept_beside(read, kept):
    tool = observation(type="TOOL", output="x" * 3_000_000)
    span = read("langfuse", export(tool)).traces[0].spans[0]
    marker = span.attributes["output.truncated"]
    assert marker["size"] == 3_000_000 and kept[marker["digest"]] == b"x" * 3_000_000
    assert 0 < len(span.result.content) < 10_000


def test_scores_and_corrections_are_feedback(read):
    scores = [
        {"name": "good", "value": 0.5, "dataType": "NUMERIC", "source": "EVAL", "comment": "why",
         "timestamp": "2026-02-10T17:15:56.965Z"},
        {"name": "ok", "value": 1, "dataType": "BOOLEAN", "observationId": "o1",
         "authorUserId": "ann"},
        {"name": "tone", "value": 0, "stringValue": "rude", "dataType": "CATEGORICAL"},
        {"value": 3},
    ]  # fmt: skip
    correction = {"name": "output", "dataType": "CORRECTION", "longStringValue": "better"}
    parsed = read("langfuse", export(observation(), scores=scores, corrections=[correction]))
    number, boolean, category, corrected = parsed.feedback
    assert (number.value, number.kind, number.by) == (0.5, "number", "EVAL")
    assert number.target == parsed.traces[0].id and number.attributes["comment"] == "why"
    assert (boolean.value, boolean.target, boolean.target_kind) == (True, "o1", "span")
    assert (category.value, category.kind) == ("rude", "category")
    assert (corrected.value, corrected.kind) == ("better", "demonstration")
    assert [error.field for error in parsed.rejects] == ["trace.scores"]


def test_a_bad_observation_is_rejected_alone(read):
    parsed = read("langfuse", export(observation(), {"type": "SPAN"}, "x"))
    assert len(parsed.traces[0].spans) == 1
    assert [error.field for error in parsed.rejects] == ["observations[1].id", "observations[2]"]


def test_other_fields_are_kept_and_counted(read):
    parsed = read("langfuse", export(observation(environment="prod"), release="r1"))
    assert parsed.unmapped == {"observation.environment": 1, "trace.release": 1}
    assert parsed.traces[0].attributes == {"release": "r1"}
    assert parsed.traces[0].spans[0].attributes == {"environment": "prod"}


def test_a_trace_that_holds_its_observations_is_the_same(read):
    held = export(observation())
    flat = {**held["trace"], "observations": held["observations"]}
    assert read("langfuse", flat).traces == read("langfuse", held).traces

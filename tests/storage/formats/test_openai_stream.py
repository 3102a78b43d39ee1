"""Streams: interleaved calls, repeated indices, missing usage, cuts."""

import json
from typing import Any

import pytest

from flywheel.errors import BadRecord
from flywheel.records import ToolCall, Usage
from storage.formats.openai_stream import merge_chunks, read_events


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def piece(index: int, arguments: str, **first: Any) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments, **first.pop("name", {})}, **first}


def events(*chunks: dict[str, Any]) -> str:
    lines = [f"data: {json.dumps(one)}\n\n" for one in chunks]
    return ": keep-alive\n\n" + "".join(lines) + "data: [DONE]\n"


def test_interleaved_parallel_calls_come_apart():
    merged = merge_chunks(
        [
            chunk({"role": "assistant", "content": None}),
            chunk({"tool_calls": [piece(0, '{"a"', id="one", name={"name": "f"})]}),
            chunk({"tool_calls": [piece(1, '{"b"', id="two", name={"name": "g"})]}),
            chunk({"tool_calls": [piece(0, ": 1}")]}),
            chunk({"tool_calls": [piece(1, ": 2}")]}),
        ]
    )
    calls = merged["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["one", "two"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"a": 1}, {"b": 2}]


def test_two_entries_of_one_index_in_one_chunk_are_one_call():
    both = [piece(0, "", id="one", name={"name": "f"}), piece(0, "{}")]
    (call,) = merge_chunks([chunk({"tool_calls": both})])["choices"][0]["message"]["tool_calls"]
    assert (call["id"], call["function"]) == ("one", {"name": "f", "arguments": "{}"})


def test_a_stream_without_usage_has_unknown_usage(read):
    request = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    text = events(chunk({"role": "assistant", "content": "he"}), chunk({"content": "llo"}))
    (trace,) = read("openai_chat", {"request": request, "response": text}).traces
    call = trace.spans[0].call
    assert call.choices[0].message.text == "hello"
    assert call.choices[0].finish_reason is None
    assert call.usage == Usage(reason="not reported")
    assert call.sampling.other == {"stream": True}


def test_usage_of_the_last_chunk_and_the_finish_reason_are_read(read):
    last = {"id": "c1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    chunks = [chunk({"content": "ok"}), chunk({}, finish_reason="stop"), last]
    row = {"request": {"messages": [{"role": "user", "content": "hi"}]}, "response": chunks}
    call = read("openai_chat", row).traces[0].spans[0].call
    assert call.usage == Usage(input_tokens=3, output_tokens=1)
    assert call.choices[0].finish_reason == "stop"


def test_all_zero_usage_of_a_stream_is_unknown(read):
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    chunks = [chunk({"content": "ok"}, finish_reason=""), {"choices": [], "usage": zeros}]
    row = {"request": {"messages": [{"role": "user", "content": "hi"}]}, "response": chunks}
    call = read("openai_chat", row).traces[0].spans[0].call
    assert call.usage.input_tokens is None and call.choices[0].finish_reason is None


def test_several_choices_are_put_together_by_index():
    chunks = [
        {"id": "c", "choices": [{"index": 1, "delta": {"content": "b"}}]},
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}}]},
        {"id": "c", "choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "stop"}]},
    ]
    choices = merge_chunks(chunks)["choices"]
    assert [one["message"]["content"] for one in choices] == ["a", "bB"]


def test_calls_without_an_index_are_told_apart_by_id(read):
    first = {"id": "one", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    second = {"id": "two", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chunks = [chunk({"tool_calls": [first]}), chunk({"tool_calls": [second]})]
    row = {"request": {"messages": []}, "response": chunks}
    message = read("openai_chat", row).traces[0].spans[0].call.choices[0].message
    assert message.parts == tuple(
        ToolCall(name="f", arguments="{}", id=name) for name in ("one", "two")
    )


def test_a_stream_cut_inside_a_chunk_keeps_what_came():
    text = events(chunk({"content": "he"}))[:-10] + 'data: {"choices": [{"ind'
    assert merge_chunks(read_events(text))["choices"][0]["message"]["content"] == "he"


def test_a_stream_without_a_chunk_is_refused():
    with pytest.raises(BadRecord, match="no chunk"):
        merge_chunks([])

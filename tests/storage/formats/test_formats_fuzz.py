"""Rows bent out of shape: nothing raises, every row gives storable records or a reason.

Each run draws others; `benchmarks/fuzz.py` draws for as long as one likes.
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.ids import digest_bytes
from storage.chunk import ChunkRead, read_chunk
from storage.envelope import decode, encode
from storage.rows_in import Row, chunks, rows

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PARTS = [
    {"type": "text", "text": "a"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
    {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a"}},
]
MESSAGES = [
    {"role": "user", "content": PARTS},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "b"}]},
]
RESPONSE = {
    "id": "r",
    "created": 1714036973,
    "prompt_token_ids": [1],
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop",
         "token_ids": [2], "logprobs": {"content": [{"logprob": -1.0}]}}
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2,
              "prompt_tokens_details": {"cached_tokens": 1}},
}  # fmt: skip
DELTA = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}
ATTRIBUTES = {
    "gen_ai.operation.name": "chat",
    "gen_ai.input.messages": json.dumps([{"role": "user", "parts": PARTS[:1]}]),
    "gen_ai.prompt.0.content": "x",
    "gen_ai.prompt.0.tool_calls.0.name": "f",
    "llm.input_messages.0.message.contents.0.message_content.text": "y",
    "llm.tools.0.tool.json_schema": "{}",
    "gen_ai.usage.input_tokens": 4,
    "gen_ai.response.finish_reasons": ["stop"],
}


def _value(plain: Any) -> dict[str, Any]:
    if isinstance(plain, list):
        return {"arrayValue": {"values": [_value(one) for one in plain]}}
    return {"intValue": str(plain)} if isinstance(plain, int) else {"stringValue": plain}


LISTED = [{"key": key, "value": _value(one)} for key, one in ATTRIBUTES.items()]
SPAN = {
    "traceId": "0" * 31 + "1", "spanId": "0" * 15 + "1", "parentSpanId": "0" * 15 + "2",
    "name": "chat", "startTimeUnixNano": "1793500000000000000", "attributes": LISTED,
    "status": {"code": 2}, "links": [{"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "3"}],
    "events": [{"name": "gen_ai.choice", "attributes": LISTED[:1]}],
}  # fmt: skip
LOG = {
    "traceId": "0" * 31 + "1", "spanId": "0" * 15 + "1", "timeUnixNano": "5",
    "attributes": [{"key": "event.name", "value": {"stringValue": "gen_ai.user.message"}}],
    "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "a"}}]}},
}  # fmt: skip
SEEDS: list[dict[str, Any]] = [
    {"trace_id": "t", "start_ns": 5, "request": {"model": "m", "messages": MESSAGES, "stop": ["a"],
     "tools": [{"type": "function", "function": {"name": "f"}}]}, "response": RESPONSE,
     "feedback": [{"name": "n", "value": 1}]},
    {"request": {"messages": MESSAGES}, "response": [{"choices": [{"index": 0, "delta": DELTA}]}]},
    {"resourceSpans": [{"resource": {"attributes": LISTED[:1]},
                        "scopeSpans": [{"scope": {"name": "s"}, "spans": [SPAN]}]}]},
    {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": [LOG]}]}]},
    {"trace": {"id": "t", "scores": [{"name": "a", "value": 1, "dataType": "NUMERIC"}]},
     "observations": [
         {"id": "o", "type": "GENERATION", "input": MESSAGES, "output": RESPONSE,
          "modelParameters": {"temperature": 1}, "usageDetails": {"input": 1, "output": 2},
          "metadata": "{}", "startTime": "2025-06-11T14:01:32.598Z"},
         {"id": "g", "type": "GENERATION", "input": {"contents": [{"parts": [{"text": "a"}]}],
          "config": {"tools": [{"function_declarations": [{"name": "f"}]}]}},
          "output": {"candidates": [{"content": {"parts": [{"function_call": {"name": "f"}}]}}]}},
         {"id": "w", "type": "TOOL", "name": "f", "input": {"x": 1}, "output": "y"}]},
    {"messages": MESSAGES, "tools": "[]", "label": True, "images": ["a"]},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{}"},
                       {"from": "observation", "value": "b"}], "tools": "[]", "system": "s"},
]  # fmt: skip

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False),
    st.text(max_size=5), st.just([]), st.just({}), st.just([None]), st.just({"type": "text"}),
    st.just([[]]), st.just("[{"), st.just({"values": 3}), st.just({"url": 1}),
    st.just([1, "a", {"role": 2}]),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path inside `value`."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        below = (*path, key)
        found += places(item, below) if isinstance(item, dict | list) else [below]
    return found


def bent(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = bent(value[path[0]], path[1:], junk)
    return copied


def check(found: ChunkRead) -> None:
    for record in found.records:
        assert encode(decode(encode(record))[1]) == encode(record)
    for _, error, _ in found.rejects:
        assert error.reason
    assert found.records or found.rejects or found.formats


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_bent_row_is_read_or_refused(data: st.DataObject):
    row: Any = data.draw(st.sampled_from(SEEDS))
    for _ in range(data.draw(st.integers(1, 3))):
        if not isinstance(row, dict | list):
            break
        row = bent(row, data.draw(st.sampled_from(places(row)[1:] or [()])), data.draw(JUNK))
    line = json.dumps(row).encode()
    found = read_chunk([Row(1, line)], "0" * 32, "p", "auto", digest_bytes)
    check(found)
    for _, error, _ in found.rejects:
        assert "has a shape that" not in error.reason, (row, error.reason)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_bytes_changed_anywhere_are_read_or_refused(data: st.DataObject):
    text = bytearray(b"\n".join(json.dumps(seed).encode() for seed in SEEDS))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(text)))
    size = data.draw(st.sampled_from([7, 1000, 1 << 20]))
    blocks = (bytes(text[at : at + size]) for at in range(0, cut, size))
    for chunk in chunks(rows(blocks, 1 << 16)):
        check(read_chunk(chunk, "0" * 32, "p", "auto", digest_bytes))

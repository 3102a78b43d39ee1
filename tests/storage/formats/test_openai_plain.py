from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel.errors import BadRecord
from storage.belonging import Belonging, owned
from storage.files_in import blocks, files_under
from storage.formats import openai_chat
from storage.formats.logged import ROW
from storage.formats.parsed import Context, Parsed
from storage.json_in import decode
from storage.prepared import Preparing
from storage.rows_in import rows


def both(row: dict[str, Any]) -> bool:
    """Whether the quick reader took the row; then it gave what the other gives."""
    data = msgspec.json.encode(row)
    context = Context("p", lambda data: "", "raw", len(data))
    found = openai_chat.quick(data, context)
    slow = openai_chat.read(decode(data), context)
    assert found is None or found == slow
    assert not straight(data, context, slow) or found is not None
    return found is not None


def straight(data: bytes, context: Context, slow: Parsed) -> bool:
    """Whether rows were made of it at once; then they are those of its records."""
    made, want = Preparing(), Preparing()
    told = Belonging(tenant="own", consent="granted")
    found = openai_chat.direct(data, context, told, made)
    if found is None:
        return False
    for trace in slow.traces:
        want.add(owned(trace, told))
    assert (found.traces, found.feedback, found.unmapped) == ([], slow.feedback, slow.unmapped)
    assert made.packed() == want.packed()
    want.add(owned(slow.traces[0], told))
    made.add(owned(slow.traces[0], told))
    assert made.packed() == want.packed()
    return True


def said(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": "hi", **fields}


def row(messages: list[dict[str, Any]], **asked: Any) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "end_turn"}
    return {
        "trace_id": "t", "span_id": "s", "parent_span_id": "r", "session_id": "", "user_id": "u",
        "start_ns": 1_793_500_000_000_000_000, "end_time": "2026-11-30T10:00:00Z",
        "feedback": {"name": "liked", "value": True, "why": "quick"}, "cache_hit": True,
        "request": {"model": "m", "messages": messages, **asked},
        "response": {"id": "a", "choices": [choice], "system_fingerprint": "f",
                     "usage": {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 9}},
    }  # fmt: skip


CALL = {"id": "c", "type": "function", "function": {"name": "get", "arguments": "{"}, "index": 0}


NO_TEXT = {"message": {"role": "assistant"}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({}, True),
        ({"parent_span_id": "r"}, False),
        ({"trace_id": None, "user_id": None, "feedback": [1, {"x": None}], "model": "n"}, True),
        ({"response": {"id": "a", "choices": [NO_TEXT]}}, False),
        ({"response": {"id": "a", "created": 1_793_500_000, "choices": [
            {"message": {"content": "é\n", "tool_calls": [CALL]}, "finish_reason": "STOP"}
        ]}}, True),
        ({"response": {"choices": [{"message": {"content": ""}}],
                       "usage": {"prompt_tokens": 0, "completion_tokens": 0}}}, True),
        ({"response": {"choices": [{"message": {"content": "", "reasoning_content": "hm"}}],
                       "usage": {"prompt_tokens": 0, "completion_tokens": 0}}}, True),
        ({"response": {"choices": [{"message": {"content": "no"},
                                    "finish_reason": "content_filter"}]}}, False),
        ({"response": {"choices": [{"message": {"content": "yes"}}],
                       "usage": {"metadata": {"user_id": "w"}}}}, False),
        ({"request": {"messages": []}}, False),
        ({"request": {"messages": [said(content=None)]}}, False),
        ({"request": {"messages": [said()], "tools": [{"name": "f", "type": "custom"}]}}, True),
        ({"request": {"messages": [said()], "tools": ["f"]}}, False),
    ],
)  # fmt: skip
def test_rows_made_at_once_are_those_of_its_records(change: dict[str, Any], taken: bool) -> None:
    one = row([said(role="system", content="ü\u2028"), said()]) | {"parent_span_id": None}
    one["response"]["usage"] = {"prompt_tokens": 3, "completion_tokens": 2}
    one |= change
    data = msgspec.json.encode(one)
    context = Context("p", lambda data: "", "raw", len(data))
    try:
        slow = openai_chat.read(decode(data), context)
    except BadRecord:
        slow = Parsed()
    assert straight(data, context, slow) is taken


@pytest.mark.parametrize(
    ("messages", "asked", "taken"),
    [
        ([said(role="system"), said(name="bob"), said(content="")], {"stop": "x", "n": 2}, True),
        ([said(role="assistant", content=None, tool_calls=[CALL])], {"tools": []}, True),
        ([said(role="assistant", content="a", tool_calls=[], reasoning_content="hm")], {}, True),
        ([said(role="tool", tool_call_id="c", name="get"), said(role="tool", content=None)],
         {"max_tokens": 5, "max_completion_tokens": None, "stream": None}, True),
        ([said(content=[{"type": "text", "text": "a"}])], {}, False),
        ([said(role="human")], {}, False),
        ([said(content="\x00")], {}, False),
        ([said(weight=0)], {}, False),
        ([said()], {"temperature": True}, False),
        ([said()], {"max_tokens": 2**64}, False),
        ([said()], {"temperature": 1, "seed": 2**62, "user": "v"}, True),
    ],
)  # fmt: skip
def test_both_readers_give_the_same(
    messages: list[dict[str, Any]], asked: dict[str, Any], taken: bool
) -> None:
    assert both(row(messages, **asked)) is taken


def test_both_readers_give_the_same_of_real_rows(shared: Path) -> None:
    taken = 0
    for file in files_under(shared / "openai_chat_logs"):
        if file.problem or file.size > 5 << 20:
            continue
        for one in rows(blocks(file.path), 1 << 24):
            value = decode(one.data) if one.problem is None else None
            if isinstance(value, dict) and "request" in value and openai_chat.recognise(value):
                known = {key: held for key, held in value.items() if key in ROW}
                taken += both({"trace_id": "t", "span_id": "s", **known})
    assert taken > 20

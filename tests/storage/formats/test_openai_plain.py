from pathlib import Path
from typing import Any

import msgspec
import pytest

from storage.files_in import blocks, files_under
from storage.formats import openai_chat
from storage.formats.logged import ROW
from storage.formats.parsed import Context
from storage.json_in import decode
from storage.rows_in import rows


def both(row: dict[str, Any]) -> bool:
    """Whether the quick reader took the row; then it gave what the other gives."""
    data = msgspec.json.encode(row)
    context = Context("p", lambda data: "", "raw", len(data))
    found = openai_chat.quick(data, context)
    assert found is None or found == openai_chat.read(decode(data), context)
    return found is not None


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

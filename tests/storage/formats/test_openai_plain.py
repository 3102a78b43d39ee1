import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from flywheel.errors import BadRecord
from flywheel.ids import digest_bytes
from storage.belonging import Belonging, owned
from storage.chunk import read_chunk
from storage.files_in import blocks, files_under
from storage.formats import openai_chat
from storage.formats.logged import ROW
from storage.formats.openai_fields import ChatRow
from storage.formats.parsed import Context, Parsed
from storage.json_in import decode
from storage.prepared import Preparing, prepare, tables
from storage.rows_in import Row, rows


def taken_by(row: dict[str, Any]) -> set[str]:
    """Which of the two quick readers took the row; these gave what the other one gives."""
    data = msgspec.json.encode(row)
    context = Context("p", lambda data: "", "raw", len(data))
    found = openai_chat.quick(data, context)
    try:
        slow = openai_chat.read(decode(data), context)
    except BadRecord:
        slow = Parsed()
    assert found is None or found == slow
    if not straight(data, context, slow):
        return set() if found is None else {"quick"}
    assert found is not None
    return {"quick", "direct"}


def both(row: dict[str, Any]) -> bool:
    return bool(taken_by(row))


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
        ({"response": {"choices": [{"message": {"content": " "},
                                    "finish_reason": "tool_use"}]}}, False),
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
    assert ("direct" in taken_by(one)) is taken


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


def test_calls_that_are_made_rows_together_are_those_of_their_records() -> None:
    dice = random.Random(5)
    chunk = []
    for number in range(300):
        asked = [said(role="system", content="Be kind."), said(content=f"q{dice.randrange(40)}")]
        one = row(asked, tools=[{"name": f"f{dice.randrange(400)}"}]) | {
            "trace_id": f"t{dice.randrange(200)}", "span_id": f"s{dice.randrange(3)}",
            "parent_span_id": "r" if dice.random() < 0.1 else None, "feedback": None,
        }  # fmt: skip
        one["response"]["usage"] = {"prompt_tokens": 3, "completion_tokens": dice.randrange(1, 3)}
        chunk.append(Row(number + 1, msgspec.json.encode(one)))
    own = Belonging(tenant="own")
    read = read_chunk(chunk, "0" * 32, "p", "auto", digest_bytes, own, Preparing())
    records = read_chunk(chunk, "0" * 32, "p", "auto", digest_bytes, own).records
    assert read.ready is not None
    made, want = tables(read.ready.packed()), tables(prepare(records))
    assert made["traces"].num_rows < 200 < made["spans"].num_rows
    for name in made | want:
        assert sorted(map(repr, made[name].to_pylist())) == sorted(
            map(repr, want[name].to_pylist())
        )


VALUES: dict[type[inspect.Type], tuple[Any, ...]] = {
    inspect.NoneType: (None,),
    inspect.BoolType: (True, False),
    inspect.IntType: (0, 1, -1, 2**62),
    inspect.FloatType: (0, 0.5, 1_793_500_000),
    inspect.StrType: ("", "a", "é\n", "tool_calls", "content_filter", "2026-11-30T10:00:00Z",
                      "chat.completion.chunk"),
    inspect.DictType: ({}, {"prompt_tokens": 0, "completion_tokens": 0}, {"total_tokens": 4},
                       {"prompt_tokens": 3, "completion_tokens": 2},
                       {"input_tokens": 3, "output_tokens": 2, "cache_creation_input_tokens": 1}),
    inspect.RawType: (None, [], [{"name": "f"}], ["f"]),
    inspect.AnyType: (None, "x", 1, True, [], {}, {"user_id": "u", "value": 1}),
}  # fmt: skip


def drawn(kind: inspect.Type, dice: random.Random, path: str, said: set[str]) -> Any:
    """A value of a type; `said` gets the fields that it has."""
    if isinstance(kind, inspect.StructType):
        made = {}
        for one in kind.fields:
            if one.required or dice.random() < 0.5:
                below = f"{path}.{one.encode_name}"
                made[one.encode_name] = drawn(one.type, dice, below, said)
                if made[one.encode_name] is not None:
                    said.add(below)
        return made
    if isinstance(kind, inspect.UnionType):
        kinds = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return drawn(dice.choice(kinds), dice, path, said) if dice.random() < 0.8 else None
    if isinstance(kind, inspect.ListType):
        most = 2 if kind.max_length is None else kind.max_length
        length = min(most, max(kind.min_length or 0, dice.choice((0, 1, 1, 1, 2))))
        return [drawn(kind.item_type, dice, path, said) for _ in range(length)]
    if isinstance(kind, inspect.LiteralType):
        return dice.choice(kind.values)
    return dice.choice(VALUES[type(kind)])


def fields(kind: inspect.Type, path: str) -> Iterator[str]:
    """Every field that a row may have, but those that hold nothing."""
    if isinstance(kind, inspect.StructType):
        for one in kind.fields:
            below = f"{path}.{one.encode_name}"
            if not isinstance(one.type, inspect.NoneType):
                yield below
            yield from fields(one.type, below)
    elif isinstance(kind, inspect.UnionType):
        for inner in kind.types:
            yield from fields(inner, path)
    elif isinstance(kind, inspect.ListType):
        yield from fields(kind.item_type, path)


def test_readers_agree_on_every_field_that_a_quick_one_knows() -> None:
    dice, shape = random.Random(7), inspect.type_info(ChatRow)
    missing = {name: set(fields(shape, "")) for name in ("quick", "direct")}
    for number in range(20_000):
        if number > 3_000 and not any(missing.values()):
            break
        said: set[str] = set()
        for name in taken_by(drawn(shape, dice, "", said)):
            missing[name] -= said
    assert missing == {"quick": set(), "direct": set()}

"""Fine-tuning rows, as messages and as ShareGPT: turns, tools, labels, images, identity."""

import json
from typing import Any

import pytest

from flywheel.errors import BadRecord
from flywheel.records import Image, Reasoning, Text, ToolCall, ToolResult, Unknown, say
from storage.formats.turns import MOST_TURNS

TALK = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]
SHARED = [
    {"from": "human", "value": "a"},
    {"from": "gpt", "value": "b"},
    {"from": "human", "value": "c"},
    {"from": "gpt", "value": "d"},
]


def calls(parsed: Any) -> list[Any]:
    return [span.call for span in parsed.traces[0].spans]


def test_each_answer_is_a_call_with_all_before_it(read):
    first, second = calls(read("chat_rows", {"messages": TALK}))
    assert [message.text for message in first.input] == ["be kind", "a"]
    assert [message.text for message in second.input] == ["be kind", "a", "b", "c"]
    assert second.choices[0].message == say("assistant", "d")
    assert second.tools is None and second.usage.reason == "not reported"


def test_the_same_conversation_in_both_formats_has_the_same_messages(read):
    rows = calls(read("chat_rows", {"messages": TALK}))
    shared = calls(read("sharegpt", {"conversations": SHARED, "system": "be kind"}))
    assert [(call.input, call.choices) for call in shared] == [
        (call.input, call.choices) for call in rows
    ]


def test_identity_is_the_conversation_not_the_rows_own_id(read):
    one = read("chat_rows", {"messages": TALK, "id": 1})
    same = read("chat_rows", {"id": 2, "messages": TALK})
    other = read("chat_rows", {"messages": TALK[:3], "id": 1})
    assert one.traces[0].id == same.traces[0].id != other.traces[0].id
    assert one.unmapped == {"id": 1} and one.traces[0].spans[-1].attributes == {"id": 1}


def test_a_conversation_that_ends_with_a_question_says_so(read):
    (first, last) = read("chat_rows", {"messages": TALK[:4]}).traces[0].spans
    assert first.error is None and last.call.choices == ()
    assert last.error == "the conversation ends without an answer"


def test_two_answers_in_a_row_are_two_calls(read):
    row = {"messages": [*TALK[:3], {"role": "assistant", "content": "more"}]}
    first, second = calls(read("chat_rows", row))
    assert second.input[-1] == say("assistant", "b")
    assert second.choices[0].message.text == "more" and first.choices[0].message.text == "b"


def test_very_long_conversations_do_not_grow_with_the_square(read):
    turn = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (trace,) = read("chat_rows", {"messages": turn * (MOST_TURNS + 1)}).traces
    (span,) = trace.spans
    assert span.attributes == {"turns_without_a_span": MOST_TURNS}


def test_parts_with_values_and_reasoning_are_read(read):
    content = [{"type": "reasoning", "value": "hm"}, {"type": "text", "value": "yes"}]
    row = {"messages": [TALK[1], {"role": "assistant", "content": content, "loss_weight": 1.0}]}
    parsed = read("chat_rows", row)
    assert calls(parsed)[0].choices[0].message.parts == (Reasoning(text="hm"), Text(text="yes"))
    assert parsed.unmapped == {"messages[].loss_weight": 1}


def test_images_take_the_places_of_their_marks(read):
    row = {"messages": [{"role": "user", "content": "<image>who?"}], "images": ["a.jpg"]}
    assert calls(read("chat_rows", row))[0].input[0].parts == (
        Image(url="a.jpg"),
        Text(text="who?"),
    )
    odd = {**row, "images": ["a.jpg", "b.jpg"]}
    assert read("chat_rows", odd).unmapped == {"images": 1}


def test_a_label_is_feedback(read):
    parsed = read("chat_rows", {"messages": TALK, "label": False})
    (said,) = parsed.feedback
    assert (said.name, said.value, said.target) == ("label", False, parsed.traces[0].id)


def test_tools_come_as_a_list_or_as_text(read):
    tools = [{"name": "f", "parameters": {}}]
    wrapped = ({"type": "function", "function": tools[0]},)
    assert calls(read("chat_rows", {"messages": TALK, "tools": tools}))[0].tools == wrapped
    text = {"messages": TALK, "tools": json.dumps(tools)}
    assert calls(read("chat_rows", text))[0].tools == wrapped
    with pytest.raises(BadRecord) as caught:
        read("chat_rows", {"messages": TALK, "tools": "[half"})
    assert caught.value.field == "tools"


def test_sharegpt_calls_and_observations_are_tool_parts(read):
    call = json.dumps({"name": "f", "arguments": {"x": 1}})
    turns = [
        {"from": "human", "value": "go"},
        {"from": "function_call", "value": call},
        {"from": "observation", "value": "42"},
        {"from": "gpt", "value": "done"},
    ]
    first, second = calls(read("sharegpt", {"conversations": turns, "tools": "[]"}))
    assert first.choices[0].message.parts == (ToolCall(name="f", arguments='{"x":1}'),)
    assert second.input[-1].parts == (ToolResult(content="42"),)
    assert second.tools == ()


def test_a_call_that_is_not_json_is_kept_as_it_came(read):
    turns = [{"from": "human", "value": "go"}, {"from": "function_call", "value": '{"name": "f'}]
    (call,) = calls(read("sharegpt", {"conversations": turns}))
    assert call.choices[0].message.parts == (Unknown(kind="function_call", raw='{"name": "f'),)


@pytest.mark.parametrize(
    ("name", "row", "field"),
    [
        ("chat_rows", {"messages": []}, "messages"),
        ("chat_rows", {"messages": [{"content": "x"}]}, "messages[0].role"),
        ("chat_rows", {"messages": TALK, "images": 3}, "images"),
        ("sharegpt", {"conversations": []}, "conversations"),
        ("sharegpt", {"conversations": [{"from": "gpt"}, 3]}, "conversations[1]"),
        ("sharegpt", {"conversations": [{"from": 3, "value": ""}]}, "conversations[0].from"),
    ],
)
def test_wrong_shapes_name_the_field(read, name, row, field):
    with pytest.raises(BadRecord) as caught:
        read(name, row)
    assert caught.value.field == field

"""Data sets: Alpaca, preference pairs, few-shot texts, calls as text in parts."""

import json
from typing import Any

import pytest

from flywheel.errors import BadRecord
from flywheel.records import Text, ToolCall, ToolResult, last_answer, say
from tests.storage.formats import agent_seeds as seeds


def calls(parsed: Any) -> list[Any]:
    return [span.call for span in parsed.traces[0].spans if span.call]


def test_instruction_and_input_are_one_message(read):
    (call,) = calls(read("alpaca", seeds.ALPACA))
    assert call.input == (say("user", "Sum.\n\n1 2"),)
    assert call.choices[0].message == say("assistant", "3")
    (bare,) = calls(read("alpaca", {"instruction": "Hi.", "input": "", "output": "Ho."}))
    assert bare.input == (say("user", "Hi."),)


def test_earlier_pairs_and_the_system_come_before(read):
    row = {**seeds.ALPACA, "system": "short", "history": [["a", "b"]], "id": 7}
    parsed = read("alpaca", row)
    last = calls(parsed)[-1]
    assert [message.role for message in last.input] == ["system", "user", "assistant", "user"]
    assert parsed.unmapped == {"id": 1}
    with pytest.raises(BadRecord) as caught:
        read("alpaca", {**seeds.ALPACA, "history": [["a"]]})
    assert caught.value.field == "history[0]"


PAIR = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "good"}]
OTHER = [PAIR[0], {"role": "assistant", "content": "bad"}]


@pytest.mark.parametrize(
    "row",
    [
        seeds.DPO,
        {"chosen": PAIR, "rejected": OTHER},
        {"prompt": "hi", "chosen": "good", "rejected": "bad"},
        {"messages": PAIR[:1], "chosen": PAIR[1], "rejected": OTHER[1]},
        {"instruction": "hi", "input": "", "chosen": "good", "rejected": "bad"},
    ],
)
def test_both_answers_of_every_dialect_are_choices_the_chosen_first(read, row):
    parsed = read("preference", row)
    (call,) = calls(parsed)
    assert call.input == (say("user", "hi"),)
    assert [choice.message.text for choice in call.choices] == ["good", "bad"]
    (said,) = parsed.feedback
    assert (said.name, said.kind, said.target) == ("preference", "category", parsed.traces[0].id)


def test_answers_of_several_turns_are_branches_and_the_chosen_one_is_last(read):
    more = [*PAIR, {"role": "user", "content": "and"}, {"role": "assistant", "content": "best"}]
    parsed = read("preference", {"chosen": more, "rejected": OTHER})
    spans = parsed.traces[0].spans
    assert [span.attributes["preference"] for span in spans] == ["rejected", "chosen", "chosen"]
    assert [len(span.call.input) for span in spans] == [1, 1, 3]
    answer = last_answer(parsed.traces[0])
    assert answer is not None and answer.message.text == "best"


@pytest.mark.parametrize("row", [{**seeds.DPO, "chosen": []}, {"chosen": PAIR, "rejected": PAIR}])
def test_a_pair_without_two_answers_is_refused(read, row):
    with pytest.raises(BadRecord):
        read("preference", row)


def test_a_text_with_speakers_is_a_conversation(read):
    first, last = calls(read("spoken", seeds.FEW_SHOT))
    assert first.choices[0].message.parts == ()
    assert last.input[-1].parts == (ToolResult(content="42"),)
    assert last.choices[0].message.text == "it is\n42"


def test_tools_and_calls_in_tags_are_read(read):
    (call,) = calls(read("spoken", seeds.HERMES))
    assert call.tools[0]["function"]["name"] == "f"
    assert call.choices[0].message.parts == (ToolCall(name="f", arguments='{"x":1}'),)


def test_a_call_as_text_in_a_part_is_a_call(read):
    made = json.dumps({"name": "f", "arguments": {"x": 1}})
    content = [{"type": "text", "value": "so"}, {"type": "tool_call", "value": made}]
    row = {"messages": [PAIR[0], {"role": "assistant", "content": content}], "tools": "[]"}
    (call,) = calls(read("chat_rows", row))
    assert call.choices[0].message.parts == (
        Text(text="so"), ToolCall(name="f", arguments='{"x":1}'),
    )  # fmt: skip


def test_the_last_turn_of_many_is_the_last(read):
    turn = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    row = {"messages": [*turn * 8, PAIR[0], {"role": "assistant", "content": "end"}]}
    answer = last_answer(read("chat_rows", row).traces[0])
    assert answer is not None and answer.message.text == "end"


def test_a_bare_list_of_messages_is_a_conversation(read):
    (call,) = calls(read("chat_rows", PAIR))
    assert call.input == (say("user", "hi"),) and call.choices[0].message.text == "good"

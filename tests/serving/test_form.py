"""Which answers are refusals, and which are not of the form that was asked for."""

import json
from typing import Any

import pytest

from serving.answer import Answer, AnswerChoice
from serving.chat import Chat
from serving.form import broken, declined
from serving.limits import Limits

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city"],
    "$defs": {"days": {"type": "integer", "minimum": 1}},
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
JSON = {"response_format": {"type": "json_object"}}


def typed(schema: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    }


def asked(**more: Any) -> Chat:
    messages = [{"role": "user", "content": "x"}]
    return Chat(json.dumps({"model": "m", "messages": messages, **more}).encode(), Limits())


def said(content: Any = None, finish: str = "stop", **more: Any) -> Answer:
    return Answer([AnswerChoice({"content": content, **more}, finish_reason=finish)])


def calls(name: str, arguments: Any) -> Answer:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return said(None, "tool_calls", tool_calls=[call])


@pytest.mark.parametrize(
    ("chat", "answer"),
    [
        (asked(), said("anything")),
        (asked(**JSON), said(' {"a": 1}\n')),
        (asked(**JSON), said("I'm sorry, but I can't help with that.")),
        (asked(**typed(SCHEMA)), said('{"city": "Rome", "days": 2}')),
        (asked(**typed({"pattern": "(a+)+$"})), said(f'"{"a" * 5000}!"')),
        (asked(**typed({"$ref": "http://127.0.0.1:1/schema"})), said("{}")),
        (asked(**typed({"$ref": "#"})), said("{}")),
        (asked(**typed({"type": 7})), said("{}")),
        (asked(tools=TOOLS), calls("weather", '{"city": "Rome"}')),
        (asked(tools=TOOLS), said("no tool is needed")),
        (asked(), said("", "length", reasoning_content="hm")),
    ],
)
def test_an_answer_of_the_form_asked_for_is_whole(chat: Chat, answer: Answer) -> None:
    assert broken(chat, answer) is None


@pytest.mark.parametrize(
    ("chat", "answer", "why"),
    [
        (asked(), said(""), "the answer is empty"),
        (asked(), Answer([]), "there is no answer"),
        (asked(**JSON), said("Here it is: {}"), "the answer is not JSON"),
        (asked(**JSON), said("[1]"), "the answer is JSON but no object"),
        (asked(**typed(SCHEMA)), said('{"city": "Rome"', "length"), "the answer is not JSON"),
        (asked(**typed(SCHEMA)), said('{"city": "Rome", "days": 0}'), "says: .days: breaks"),
        (asked(**typed(SCHEMA)), said("{}"), "breaks `required`"),
        (asked(tools=TOOLS), calls("delete", "{}"), "'delete', which was not offered"),
        (asked(tools=TOOLS), calls("weather", '{"city'), "the arguments of weather are not JSON"),
        (asked(tools=TOOLS), calls("weather", "3"), "the arguments of weather are no object"),
        (asked(tools=TOOLS), calls("weather", '{"city": 3}'), ".city: breaks `type`"),
        (asked(), calls("weather", "{}"), "was not offered"),
    ],
)
def test_an_answer_of_another_form_says_why(chat: Chat, answer: Answer, why: str) -> None:
    assert why in (broken(chat, answer) or "")


def test_a_schema_that_would_take_for_ever_ends_and_breaks_nothing() -> None:
    steps = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**steps, "d40": {"type": "object"}}}
    assert broken(asked(**typed(schema)), said("{}")) is None


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I cannot provide instructions for this.",
        "Sorry, I can’t assist with that request.",
        "Unfortunately, I am unable to share that.",
        "As an AI model, I must decline to answer this.",
    ],
)
def test_words_that_decline_are_a_refusal(text: str) -> None:
    assert declined(said(text))


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry to hear that your order is late. It ships today.",
        "I can't wait to see it! Here is the plan.",
        "Sorry for the delay: your order has shipped.",
        "You can't return it after thirty days.",
        "",
    ],
)
def test_words_that_only_sound_like_it_are_none(text: str) -> None:
    assert not declined(said(text))


def test_a_refusal_is_also_what_the_protocol_calls_one() -> None:
    assert declined(said(None, refusal="no"))
    assert declined(said("", "content_filter"))
    assert not declined(said("I can't help with that", tool_calls=[{"id": "1"}]))

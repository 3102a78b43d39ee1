"""Histories and the table that knows them, and the gateway that goes by it."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from flywheel.records import Message, ToolCall, ToolResult, Trace, say
from serving.conversation import Offload, messages_of
from serving.stitching import Turn, Turns
from storage.history import following, history
from tests.serving.running import Running, running, terms
from tests.serving.scripted_upstream import WORDS, Upstream

ANSWER = "".join(WORDS)
FIRST = [{"role": "user", "content": "where is my order?"}]
SECOND = [*FIRST, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "and now?"}]
THIRD = [*SECOND, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "thanks"}]


def ask(gateway: Running, messages: Any, **more: Any) -> Trace:
    """The trace that the request became a part of."""
    headers = more.pop("headers", {})
    content = json.dumps({"model": "support", "messages": messages, **more})
    url = gateway.url + "/v1/chat/completions"
    answer = httpx.post(url, content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    trace = gateway.traces()[-1]
    assert answer.headers["x-flywheel-trace-id"] == trace.id
    return trace


def parent(trace: Trace) -> str | None:
    (span,) = trace.spans
    return span.parents[0] if span.parents else None


def test_a_request_that_repeats_a_conversation_goes_on_with_its_trace(gateway: Running) -> None:
    one, two, three = ask(gateway, FIRST), ask(gateway, SECOND, stream=True), ask(gateway, THIRD)
    assert one.id == two.id == three.id
    assert one.external_id == two.external_id == three.conversation
    assert (parent(one), parent(two), parent(three)) == (None, one.spans[0].id, two.spans[0].id)


def test_edits_and_further_tries_are_branches(gateway: Running) -> None:
    one, two = ask(gateway, FIRST), ask(gateway, SECOND)
    again = ask(gateway, SECOND)
    edited = ask(gateway, [*SECOND[:2], {"role": "user", "content": "no, the other one"}])
    assert {one.id} == {two.id, again.id, edited.id}
    assert [parent(trace) for trace in (two, again, edited)] == [one.spans[0].id] * 3
    # Something that nobody went on from is gone on from, else what is newest.
    assert parent(ask(gateway, THIRD)) == again.spans[0].id


def test_a_first_question_is_a_conversation_of_its_own_each_time(gateway: Running) -> None:
    one, other = ask(gateway, FIRST), ask(gateway, FIRST)
    assert one.id != other.id
    assert {ask(gateway, SECOND).id, ask(gateway, SECOND).id} == {one.id, other.id}


def test_histories_of_different_callers_never_meet() -> None:
    said = messages_of(SECOND, offload())
    one = history(("support", "by", "k1", "ann"), said)
    for scope in (
        ("shop", "by", "k1", "ann"),
        ("support", "by", "k2", "ann"),
        ("support", "by", "k1", "bob"),
        ("support", "in", "k1", "ann"),
    ):
        assert not set(one.answered) & set(history(scope, said).answered)


def test_calls_of_a_named_conversation_have_parents_and_branches_too(gateway: Running) -> None:
    named = {"headers": {"x-conversation-id": "c-1"}}
    one, two = ask(gateway, FIRST, **named), ask(gateway, SECOND, **named)
    again = ask(gateway, FIRST, **named)
    elsewhere = ask(gateway, SECOND, headers={"x-conversation-id": "c-2"})
    assert one.id == two.id == again.id != elsewhere.id
    assert (parent(two), parent(again)) == (one.spans[0].id, None)
    assert parent(elsewhere) is None


def test_a_project_may_do_without(tmp_path: Path, engine: Upstream) -> None:
    with running(tmp_path, engine.url, terms=terms(capture={"stitch": False})) as up:
        assert ask(up, FIRST).id != ask(up, SECOND).id
        named = {"headers": {"x-conversation-id": "c-1"}}
        assert parent(ask(up, SECOND, **named)) is None


def test_what_the_official_client_sends_back_is_known(gateway: Running) -> None:
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key="none") as client:
        messages: list[Any] = [{"role": "user", "content": "calls"}]
        for _ in range(2):
            answer = client.chat.completions.create(model="support", messages=messages)
            message = answer.choices[0].message
            messages += [message.model_dump()]
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "done"}
                for call in message.tool_calls or ()
            ]
    first, second = gateway.traces()
    assert first.id == second.id
    assert parent(second) == first.spans[0].id


def test_it_is_known_after_a_restart_and_to_other_processes(
    tmp_path: Path, engine: Upstream
) -> None:
    with running(tmp_path, engine.url) as up:
        one = ask(up, FIRST)
    with running(tmp_path, engine.url) as up:
        assert ask(up, SECOND).id == one.id


# --- histories ------------------------------------------------------------------------------------


def offload() -> Offload:
    return Offload(lambda data: "digest", text=2**20, inline_image=2**16)


def said(**message: Any) -> Message:
    return messages_of([message], offload())[0]


NOTHING = history(("p",), ()).whole
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1, "b": []}'}}
SAME = [
    (said(role="assistant", content="yes"), said(role="assistant", content=" yes\n")),
    (
        said(role="assistant", content="yes"),
        said(role="assistant", content=[{"type": "text", "text": "yes"}], refusal=None),
    ),
    (
        said(role="assistant", content="yes", reasoning_content="hm"),
        said(role="assistant", content="yes", annotations=[{"a": 1}]),
    ),
    (
        said(role="assistant", content=None, tool_calls=[CALL]),
        Message(role="assistant", parts=(ToolCall(id="a", name="f", arguments='{"b":[],"x":1}'),)),
    ),
]


@pytest.mark.parametrize("pair", SAME)
def test_a_message_is_itself_in_any_form(pair: tuple[Message, Message]) -> None:
    one, other = pair
    assert following(NOTHING, one) == following(NOTHING, other)


def test_other_messages_are_others() -> None:
    ones = [
        say("assistant", "yes"),
        say("user", "yes"),
        say("assistant", "no"),
        Message(role="assistant", parts=(ToolCall(id="a", name="f", arguments="{}"),)),
        Message(role="assistant", parts=(ToolCall(id="b", name="f", arguments="{}"),)),
        Message(role="tool", parts=(ToolResult(id="a", content="yes"),)),
        Message(role="tool", parts=(ToolResult(id="a", content="no"),)),
        said(role="user", content=[{"type": "image_url", "image_url": {"url": "https://x/a.png"}}]),
        said(role="user", content=[{"type": "image_url", "image_url": {"url": "https://x/b.png"}}]),
    ]
    assert len({following(NOTHING, one) for one in ones}) == len(ones)


def test_the_longest_beginning_is_looked_for_first_and_only_the_latest() -> None:
    messages = [say("user" if n % 2 == 0 else "assistant", str(n)) for n in range(201)]
    past = history(("p",), messages)
    assert len(past.answered) == 64
    shorter = history(("p",), messages[:-2])
    assert past.answered[1] == shorter.answered[0]
    assert past.answered[0] == following(history(("p",), messages[:-2]).whole, messages[-2])


# --- the table ------------------------------------------------------------------------------------


def key(number: int) -> bytes:
    return number.to_bytes(8) + b"\0" * 8


def test_what_was_added_is_found_by_another_process_and_the_longest_wins(tmp_path: Path) -> None:
    one, other = Turns(tmp_path / "t"), Turns(tmp_path / "t")
    one.add(key(1), "root", "span-1")
    one.add(key(2), "root", "span-2")
    assert other.find([key(9), key(2), key(1)]) == Turn("root", "span-2")
    assert other.find([key(9)]) is None


def test_one_that_nobody_went_on_from_is_taken_first(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "t")
    for name in "abc":
        turns.add(key(1), name, name)
    found = [turns.find([key(1)]) for _ in range(4)]
    assert [turn.span for turn in found if turn] == ["c", "b", "a", "c"]


def test_the_oldest_gives_way_and_the_file_does_not_grow(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "t", slots=8)
    for number in range(20):
        turns.add(key(number), "root", f"span-{number}")
    known = [n for n in range(20) if turns.find([key(n)]) is not None]
    assert known == list(range(12, 20))
    assert (tmp_path / "t").stat().st_size == 1024


def test_what_was_torn_is_forgotten_and_written_over(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "t", slots=8)
    turns.add(key(1), "root", "span-1")
    with (tmp_path / "t").open("r+b") as file:
        file.seek(30)
        file.write(b"xx")
    assert turns.find([key(1)]) is None
    (tmp_path / "t").write_bytes(os.urandom(1024))
    for number in range(8):
        turns.add(key(number), "root", f"span-{number}")
        assert turns.find([key(number)]) == Turn("root", f"span-{number}")


def test_a_name_that_has_no_room_is_not_remembered(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "t")
    turns.add(key(1), "r" * 41, "span")
    assert turns.find([key(1)]) is None

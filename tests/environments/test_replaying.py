"""Recorded conversations, asked again of a model whose answers the test writes."""

from typing import Any

import pytest

from environments.replaying import Asker, Replayed, replay
from environments.rollouts import Sampler
from environments.told import turns_of
from flywheel.errors import EngineError
from flywheel.records import (
    Choice,
    Message,
    ModelCall,
    Problem,
    Sampling,
    Span,
    ToolCall,
    ToolResult,
    Trace,
    last_answer,
    say,
    trace_id,
)
from tests.tasks.answering import Answer, answering

TOOLS = ({"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}},)


def called(arguments: str, id: str) -> Message:
    return Message(role="assistant", parts=(ToolCall(name="find", arguments=arguments, id=id),))


def told(content: str, id: str) -> Message:
    return Message(role="tool", parts=(ToolResult(content=content, id=id),))


def recorded(*exchanges: tuple[tuple[Message, ...], Message]) -> Trace:
    """A trace of calls, each with its whole history."""
    history: tuple[Message, ...] = ()
    spans = []
    for number, (said, answer) in enumerate(exchanges):
        history = (*history, *said)
        call = ModelCall(
            input=history,
            tools=TOOLS,
            choices=(Choice(message=answer, finish_reason="stop"),),
            deployment="p-v0",
            sampling=Sampling(temperature=0.0, other={"tool_choice": "auto", "logprobs": True}),
        )
        spans.append(Span(id=f"s{number}", kind="model", start=number, call=call))
        history = (*history, answer)
    return Trace(
        id=trace_id("p", "gateway", "c"), project="p", source="gateway", external_id="c",
        origin="production", spans=tuple(spans),
    )  # fmt: skip


AGENT = recorded(
    ((say("user", "where is 7?"),), called('{"order": 7}', "a")),
    ((told("in Rome", "a"),), say("assistant", "In Rome.")),
    ((say("user", "and 8?"),), say("assistant", "Unknown.")),
)


def played(trace: Trace, answer: Answer) -> tuple[Replayed, list[dict[str, Any]]]:
    problem = Problem(environment="e", messages=trace.spans[0].call.input)  # type: ignore[union-attr]
    with answering(answer) as model:
        asker = Asker(Sampler(model.url, "new", deployment="p-v1", tokens=False), "run", 64)
        (found,) = replay([(trace, problem)], asker)
        return found, model.requests


def call_of(arguments: str) -> dict[str, Any]:
    function = {"name": "find", "arguments": arguments}
    call = {"id": "x", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_each_of_the_users_turns_is_asked_with_what_was_really_said_before_it() -> None:
    def answer(body: dict[str, Any]) -> str | dict[str, Any]:
        last = body["messages"][-1]
        if last["content"] == "where is 7?":
            return call_of('{ "order":7 }')
        return f"told {last['content']}"

    found, requests = played(AGENT, answer)
    assert (found.ended, found.reason) == ("answered", None)
    asked = [one["messages"][-1]["content"] for one in requests]
    assert asked == ["where is 7?", "in Rome", "and 8?"]
    assert requests[1]["messages"][-1]["tool_call_id"] == "x"
    assert [one["content"] for one in requests[2]["messages"]][-2] == "In Rome."
    assert requests[0]["temperature"] == 0.0 and requests[0]["tool_choice"] == "auto"
    assert "logprobs" not in requests[0] and requests[0]["max_tokens"] == 64
    answered = last_answer(found.trace)
    assert answered is not None and answered.message.text == "told and 8?"
    assert found.trace.origin == "evaluation"
    assert found.trace.attributes["replay_of"] == AGENT.id


def test_a_call_that_the_record_has_no_result_for_ends_the_branch() -> None:
    found, requests = played(AGENT, lambda body: call_of('{"order": 9}'))
    assert found.ended == "diverged" and len(requests) == 1
    assert found.reason is not None and '"order": 9' in found.reason
    assert found.trace.attributes["failed_by"] == "record"


def test_a_result_is_told_once() -> None:
    found, requests = played(AGENT, lambda body: call_of('{"order": 7}'))
    assert found.ended == "diverged" and len(requests) == 2


def test_where_the_record_ends_with_a_call_the_models_may_too() -> None:
    ends = recorded(((say("user", "find 7"),), called('{"order": 7}', "a")))
    found, _ = played(ends, lambda body: call_of('{"order": 9}'))
    assert found.ended == "answered"
    (turn,) = turns_of(ends)
    assert turn.open and turn.told == ()


def test_an_edited_branch_is_not_gone_through() -> None:
    edited = recorded(((say("user", "old words"),), say("assistant", "old")))
    branch = recorded(((say("user", "new words"),), say("assistant", "new")))
    later = Span(id="later", kind="model", start=9, call=branch.spans[0].call)
    both = Trace(
        id=edited.id, project="p", source="gateway", external_id="c", origin="production",
        spans=(*edited.spans, later),
    )  # fmt: skip
    (turn,) = turns_of(both)
    assert turn.call.input[0].text == "new words"


def test_a_refused_call_is_a_failed_replay_and_an_engine_that_is_gone_an_error() -> None:
    found, _ = played(AGENT, lambda body: 400)
    assert found.ended == "failed" and found.trace.spans[0].error
    with pytest.raises(EngineError, match="503"):
        played(AGENT, lambda body: 503)

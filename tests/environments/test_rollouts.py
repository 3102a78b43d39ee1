import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from environments.define import Environment
from environments.grading import why_ungradable
from environments.rollouts import Opened, Sampler, sample
from flywheel.chat import to_chat
from flywheel.errors import BadRecord, EngineError, UsageError
from flywheel.ids import seed_of
from flywheel.records import (
    File,
    Message,
    Problem,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    last_answer,
    say,
    trace_id,
)
from serving.interception import Interception, Served

PROBLEMS = [Problem(environment="e", messages=(say("user", f"say {k}"),)) for k in range(3)]


def run(url: str, **over: Any) -> list[Trace]:
    fields: dict[str, Any] = {
        "run_id": "run", "project": "p", "samples": 2, "temperature": 0.7, "max_tokens": 8,
        "chunk_id": "chunk",
    }  # fmt: skip
    problems = over.pop("problems", PROBLEMS)
    sampler = Sampler(url, over.pop("model", "base"), "secret", deployment="p-v0")
    done = sample(Environment(), problems, sampler, **{**fields, **over})
    return [one.trace for one in done]


def test_each_attempt_is_a_trace_whose_id_and_seed_come_from_run_problem_and_k(engine: Any) -> None:
    traces = run(engine.url)
    expected = [(problem, k) for problem in PROBLEMS for k in (0, 1)]
    for trace, (problem, k) in zip(traces, expected, strict=True):
        assert trace.id == trace_id("p", "rollout:run", f"{problem.id}/{k}")
        assert (trace.problem_id, trace.attempt, trace.run_id) == (problem.id, k, "run")
        choice, seed = last_answer(trace), seed_of("run", problem.id, k)
        assert choice is not None and choice.message.text == f"seed {seed}"
        assert choice.tokens is not None
        assert (choice.tokens.prompt_ids, choice.tokens.completion_ids) == (
            (1, 5, 6), (seed % 251, 2),
        )  # fmt: skip
        assert choice.tokens.logprobs == (-0.5, -0.5)
        assert choice.tokens.policy_versions == ("p-v0",)
        call = trace.spans[0].call
        assert call is not None and call.sampling.seed == seed and call.usage.output_tokens == 2
    again = run(engine.url)
    assert [untimed(trace) for trace in again] == [untimed(trace) for trace in traces]


def untimed(trace: Trace) -> Trace:
    spans = tuple(msgspec.structs.replace(span, start=None, end=None) for span in trace.spans)
    return msgspec.structs.replace(trace, spans=spans)


def test_a_chunk_is_one_gang_all_of_it_under_way_at_once(engine: Any) -> None:
    together = threading.Barrier(6, timeout=20)
    reply = engine.reply

    def wait_for_all(asked: dict[str, Any]) -> tuple[int, Any]:
        together.wait()
        return reply(asked)

    engine.reply = wait_for_all
    assert len(run(engine.url)) == 6
    gangs = {
        (asked["flywheel_gang"]["id"], asked["flywheel_gang"]["size"]) for asked in engine.asked
    }
    assert len(gangs) == 1 and gangs.pop()[1] == 6
    (asked, *_rest) = engine.asked
    assert (asked["path"], asked["key"]) == ("/v1/chat/completions", "Bearer secret")
    assert asked["return_token_ids"] is True and asked["logprobs"] is True
    assert "n" not in asked


def test_two_sides_have_the_same_seeds_and_different_traces(engine: Any) -> None:
    ours = run(engine.url, origin="evaluation", side="champion")
    theirs = run(engine.url, origin="evaluation", side="candidate", model="p-v1")
    assert not {trace.id for trace in ours} & {trace.id for trace in theirs}
    assert sorted(a["seed"] for a in engine.asked[:6]) == sorted(
        a["seed"] for a in engine.asked[6:]
    )


def test_a_call_that_fails_is_a_trace_with_its_error(engine: Any) -> None:
    reply = engine.reply

    def refuse_one(asked: dict[str, Any]) -> tuple[int, Any]:
        if asked["messages"][0]["content"] == "say 1":
            return 400, {"error": {"message": "the prompt is too long"}}
        return reply(asked)

    engine.reply = refuse_one
    traces = run(engine.url)
    assert len(traces) == 6
    for trace in traces:
        failed = trace.problem_id == PROBLEMS[1].id
        assert ("too long" in (trace.spans[0].error or "")) is failed
        assert (why_ungradable(trace) is not None) is failed


@pytest.mark.parametrize("status", [401, 404, 429, 500, 502, 503])
def test_an_engine_that_cannot_be_used_is_an_engine_error(engine: Any, status: int) -> None:
    engine.reply = lambda asked: (status, {"error": {"message": "no such model"}})
    with pytest.raises(EngineError, match=f"HTTP {status}"):
        run(engine.url)


def test_an_engine_that_is_gone_is_an_engine_error_at_once() -> None:
    with pytest.raises(EngineError, match="no answer from the engine at"):
        run("http://127.0.0.1:9")


@pytest.mark.parametrize(
    "body", [b"<html>", b"null", b'{"choices": [{"index": 0}]}', b'{"choices": 3}', b"[]"]
)
def test_an_engine_that_talks_nonsense_is_an_engine_error(engine: Any, body: bytes) -> None:
    engine.reply = lambda asked: (200, body)
    with pytest.raises(EngineError, match="failed on all 6"):
        run(engine.url)


def test_what_the_engine_did_not_say_is_not_known(engine: Any) -> None:
    reply = engine.reply

    def strip(asked: dict[str, Any]) -> tuple[int, Any]:
        status, said = reply(asked)
        said["choices"][0]["logprobs"]["content"].pop()
        said["choices"][0]["finish_reason"] = ""
        said["usage"] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return status, said

    engine.reply = strip
    (trace, *_rest) = run(engine.url)
    choice, call = last_answer(trace), trace.spans[0].call
    assert choice is not None and choice.tokens is not None and call is not None
    assert choice.tokens.logprobs is None and choice.finish_reason is None
    assert "1 log-probabilities beside 2" in trace.spans[0].attributes["tokens"]
    assert call.usage.output_tokens is None and "zero" in (call.usage.reason or "")


def test_nothing_to_sample_asks_nothing(engine: Any) -> None:
    assert run(engine.url, problems=[]) == []
    assert engine.asked == []


def test_messages_keep_calls_results_null_and_empty_content() -> None:
    messages = [
        say("system", "x"),
        Message(role="assistant", parts=(ToolCall(name="f", arguments="{}", id="1"),)),
        Message(role="tool", parts=(ToolResult(content="4", id="1"),)),
        say("assistant", ""),
    ]
    assert to_chat(messages) == [
        {"role": "system", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
        {"role": "assistant", "content": ""},
    ]  # fmt: skip


def test_a_prompt_that_was_not_kept_whole_is_not_sent(engine: Any) -> None:
    torn = Message(role="user", parts=(Text(text="see"), File(digest="d")))
    with pytest.raises(BadRecord, match="file"):
        to_chat([torn])
    problem = Problem(environment="e", messages=(torn,))
    traces = run(engine.url, problems=[problem, PROBLEMS[0]])
    assert ["kind file" in (trace.spans[0].error or "") for trace in traces] == [
        True,
        True,
        False,
        False,
    ]


def test_an_environment_of_several_calls_is_played_at_a_recorder_in_the_same_order(
    engine: Any,
) -> None:
    @contextlib.asynccontextmanager
    async def opens() -> AsyncIterator[Opened]:
        async with Interception(Served(engine.url, "base", deployment="p-v0")) as recorder:
            yield Opened(recorder)

    fields: dict[str, Any] = {
        "run_id": "run", "project": "p", "samples": 2, "temperature": 0.7, "max_tokens": 8,
    }  # fmt: skip
    tools = Environment({"harness": {"kind": "tools"}})
    sampler = Sampler(engine.url, "base")
    done = sample(tools, PROBLEMS, sampler, opens=opens, **fields)
    expected = [(problem.id, k) for problem in PROBLEMS for k in (0, 1)]
    assert [(one.trace.problem_id, one.trace.attempt) for one in done] == expected
    single = run(engine.url)
    assert [one.trace.id for one in done] == [trace.id for trace in single]
    with pytest.raises(UsageError, match="needs a recorder"):
        sample(tools, PROBLEMS, sampler, **fields)

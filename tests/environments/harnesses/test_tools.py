import asyncio
import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from environments.define import Environment
from environments.golden import trace_of
from environments.grading import Item, grade_all, score
from environments.harnesses.asking import Ended
from environments.harnesses.contract import Budget, Episode, Tool, Tools
from environments.load import load_environment
from environments.marks import stop
from flywheel.errors import ProjectError
from flywheel.records import Trace, last_answer, model_spans
from tests.environments.playing import ended, play, says, spans
from tests.test_docs_examples import examples

NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


class Counting(Environment):
    harness = Tools(budget=Budget(tool_output=300))

    def tools(self, episode: Episode) -> list[Tool]:
        def add(n: int) -> int:
            episode.state["sum"] = episode.state.get("sum", 0) + n
            return int(episode.state["sum"])

        async def forever(n: int) -> None:
            await asyncio.Event().wait()

        def stuck(n: int) -> None:
            threading.Event().wait(3)

        def broken(n: int) -> None:
            raise KeyError("no such row")

        def submit(n: int) -> None:
            raise Ended("submitted")

        found = {
            "add": add, "forever": forever, "stuck": stuck, "broken": broken, "submit": submit,
            "large": lambda n: "x" * 20_000_000, "odd": lambda n: object(),
            "half": lambda n: "\ud83d",
        }  # fmt: skip
        return [Tool(name, f"does {name}", NUMBER, call) for name, call in found.items()]


def test_the_tool_of_the_documents_is_called(engine: Any, tmp_path: Path) -> None:
    for name in ("orders.py", "orders.jsonl"):
        (tmp_path / name).write_text(examples()[name])
    environment = load_environment("orders.py:Orders", tmp_path)
    asked = {one.answer: one for one in environment.problems().problems}

    def talk(messages: list[dict[str, Any]]) -> Any:
        came = [one["content"] for one in messages if one["role"] == "tool"]
        return f"It is {came[-1]}." if came else [("where", {"number": "17"})]

    engine.reply = says(talk)
    (played,) = play(environment, engine.url, [asked["17"]])
    items = [Item(played.trace, asked["17"])]
    for one in asked.values():
        said = [environment.gold(one), *environment.wrong(one)]
        items += [Item(trace_of(one, text, k), one) for k, text in enumerate(said) if text]
    values = [score(given) for given in grade_all(environment, items)]
    assert values == [1.0, 1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["where"], "number 1 is of type str"),
        ({"where": 1}, "not dict"),
        ([Tool("where", "", {}, "where")], r"number 1 \(where\) has a call that cannot be called"),
        ([Tool("where", "", "string", print)], r"\(where\) has a schema that is no dict"),  # type: ignore[arg-type]
        ([Tool("where", None, {}, print)], "a description that is no text"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_tool_is_refused_in_words(engine: Any, given: Any, told: str) -> None:
    class Wrong(Environment):
        harness = Tools()

        def tools(self, episode: Episode) -> Any:
            return given

    (played,) = play(Wrong(), engine.url)
    notes = played.trace.attributes
    assert notes["failed_by"] == "environment" and "wrong.tools must return" in notes["failed"]
    assert re.search(told, notes["failed"])


def test_hooks_that_are_no_methods_are_refused_when_the_class_is_made() -> None:
    with pytest.raises(ProjectError, match=r"def tools\(self, episode\)`, not tuple"):
        type("Wrong", (Environment,), {"tools": ()})


def once(*calls: Any) -> Any:
    """A model that makes these calls first, then says what the tools told it."""

    def talk(messages: list[dict[str, Any]]) -> Any:
        told = [one["content"] for one in messages if one["role"] == "tool"]
        return list(calls) if not told else " | ".join(told)

    return says(talk)


def test_a_schemas_reference_is_never_fetched(engine: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        there = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema"

        class Refers(Counting):
            def tools(self, episode: Episode) -> list[Tool]:
                schema = {"type": "object", "properties": {"n": {"$ref": there}}}
                return [Tool("add", "", schema, lambda n: n)]

        engine.reply = once(("add", {"n": 2}))
        (done,) = play(Refers(), engine.url)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert "Unresolvable" in (spans(done, "tool")[0].error or "")


def test_calls_are_run_answered_in_order_and_recorded_as_spans(engine: Any) -> None:
    engine.reply = once(("add", {"n": 2}), ("add", {"n": 3}))
    (done,) = play(Counting(), engine.url)
    choice = last_answer(done.trace)
    assert choice is not None and choice.message.text == "2 | 5"
    assert ended(done) == "answered" and done.trace.attributes["state"] == {"sum": 5}
    first, second = model_spans(done.trace)
    assert first.call is not None and second.call is not None
    assert [tool["function"]["name"] for tool in first.call.tools or ()][:2] == ["add", "forever"]
    assert [message.role for message in second.call.input] == ["user", "assistant", "tool", "tool"]
    for span in spans(done, "tool"):
        assert span.parents == (first.id,) and span.error is None
        assert span.tool is not None and span.tool.name == "add" and span.result is not None
        assert span.start is not None and span.end is not None and span.start <= span.end


def test_calls_of_one_answer_run_side_by_side(engine: Any) -> None:
    class Meeting(Environment):
        harness = Tools()

        def tools(self, episode: Episode) -> list[Tool]:
            both = asyncio.Barrier(2)

            async def meet() -> str:
                await both.wait()
                return "met"

            return [Tool("meet", "", {"type": "object"}, meet)]

    engine.reply = once(("meet", {}), ("meet", {}))
    (done,) = play(Meeting(), engine.url)
    assert [span.error for span in spans(done, "tool")] == [None, None]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("ad", {"n": 1}), "there is no tool 'ad'; did you mean 'add'?"),
        (("zzz", {}), "there is no tool 'zzz'; there are: add, forever"),
        (("add", '{"n": 1'), "the arguments of add are no JSON"),
        (("add", "[1]"), "must be a JSON object, not list"),
        (("add", {"n": "two"}), "n: 'two' is not of type 'integer'"),
        (("add", {}), "'n' is a required property"),
        (("add", {"n": 1, "m": 2}), "'m' was unexpected"),
        (("broken", {"n": 1}), "KeyError: 'no such row'"),
        (("forever", {"n": 1}), "forever took longer than 0.5 s"),
        (("stuck", {"n": 1}), "stuck took longer than 0.5 s"),
        (("odd", {"n": 1}), "neither text nor JSON"),
    ],
)
def test_a_call_that_fails_is_answered_with_what_is_wrong(
    engine: Any, call: Any, told: str
) -> None:
    engine.reply = once(call)
    budget = {"tool_s": 0.5 if call[0] in ("forever", "stuck") else 60.0}
    (done,) = play(Counting({"harness": {"kind": "tools", "budget": budget}}), engine.url)
    choice, (span,) = last_answer(done.trace), spans(done, "tool")
    assert choice is not None and choice.message.text.startswith("Error: ")
    assert told in choice.message.text and ended(done) == "answered"
    assert told in (span.error or "") and span.result is not None and span.result.is_error
    assert ("traceback" in span.attributes) is (call[0] in ("broken", "odd"))


def test_an_answer_of_20_mb_is_cut_and_said_to_be(engine: Any) -> None:
    engine.reply = once(("large", {"n": 1}))
    (done,) = play(Counting(), engine.url)
    (span,) = spans(done, "tool")
    assert span.result is not None
    assert span.result.content == "x" * 300 + "\n[cut: the first 300 of 20000000 characters]"


def test_half_a_surrogate_pair_of_a_tool_is_mended(engine: Any) -> None:
    engine.reply = once(("half", {"n": 1}))
    (done,) = play(Counting(), engine.url)
    choice = last_answer(done.trace)
    assert choice is not None and choice.message.text == "\ufffd"


def test_a_tool_may_end_the_episode(engine: Any) -> None:
    engine.reply = once(("submit", {"n": 1}), ("forever", {"n": 1}))
    (done,) = play(Counting(), engine.url)
    assert ended(done) == "submitted" and len(model_spans(done.trace)) == 1


def test_a_model_that_never_answers_ends_at_its_turns(engine: Any) -> None:
    engine.reply = says(lambda messages: [("add", {"n": len(messages)})])
    (done,) = play(Counting({"harness": {"kind": "tools", "budget": {"turns": 5}}}), engine.url)
    assert ended(done) == "budget: turns" and len(model_spans(done.trace)) == 5


def test_a_model_that_says_the_same_to_the_same_again_and_again_is_stopped(engine: Any) -> None:
    engine.reply = says(lambda messages: [("broken", {"n": 1})])
    (done,) = play(Counting(), engine.url)
    assert ended(done) == "stopped: loop" and len(model_spans(done.trace)) == 4
    engine.reply = says(lambda messages: [("add", {"n": 1})])
    (done,) = play(Counting(), engine.url)
    assert ended(done) == "budget: turns", "what the tool says differs: that is work, no loop"


def test_tokens_of_all_answers_are_bounded(engine: Any) -> None:
    engine.reply = says(lambda messages: [("add", {"n": len(messages)})])
    config = {"harness": {"kind": "tools", "budget": {"tokens": 6}}}
    (done,) = play(Counting(config), engine.url)
    assert ended(done) == "budget: tokens" and len(model_spans(done.trace)) == 3


def test_stops_are_asked_between_calls_with_the_trace_so_far(engine: Any) -> None:
    class Stopping(Counting):
        @stop
        def enough(self, trace: Trace, state: dict[str, Any], answer: str) -> bool:
            asked = [span for span in trace.spans if span.kind == "model"]
            tools = [span for span in trace.spans if span.kind == "tool"]
            assert len(asked) == len(tools) and answer == ""
            return bool(state["sum"] >= 3)

    engine.reply = says(lambda messages: [("add", {"n": 1})])
    (done,) = play(Stopping(), engine.url)
    assert ended(done) == "stopped: enough" and len(model_spans(done.trace)) == 3


def test_arguments_of_nothing_are_no_arguments(engine: Any) -> None:
    class Plain(Environment):
        harness = Tools(parallel=False)

        def tools(self, episode: Episode) -> list[Tool]:
            return [Tool("now", "", {"type": "object", "properties": {}}, lambda: {"at": 5})]

    engine.reply = once(("now", ""), ("now", "{}"))
    (done,) = play(Plain(), engine.url)
    choice = last_answer(done.trace)
    assert choice is not None and json.loads(choice.message.text.split(" | ")[0]) == {"at": 5}

"""Turns over turns: what was sampled stays as it was sampled, or the trace forks and says why."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flywheel.episodes import Access, Forced, Ticket
from flywheel.records import Message, Reasoning, Span, Text, Tokens, Trace
from serving.interception import Interception, Served
from tests.serving.scripted_model import ScriptedModel
from trainer.models import load_tokenizer
from trainer.paths import paths_of
from trainer.render import Answer, Rendering, renderer_for

TINY = Path(__file__).resolve().parents[1] / "sorting" / "base"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALLS = (
    '<tool_call>[{"name": "look", "arguments": {"at":  1}}, '
    '{"name": "look", "arguments": {"at": 2}}]</tool_call>'
)
TICKET = Ticket("p", "rollout:r", "x/0", "rollout", "x", "r", 0, {"environment": "e"})


@pytest.fixture(scope="module")
def rendering() -> Rendering:
    return renderer_for(load_tokenizer(TINY))


class Talk:
    """One episode, and a client that says what it is told to."""

    def __init__(self, recorder: Interception, access: Access, http: Any) -> None:
        self.recorder, self.access, self.http = recorder, access, http

    async def ask(
        self, messages: list[Any], headers: dict[str, str] | None = None, **more: Any
    ) -> Any:
        body = {"model": "m", "messages": messages, **more}
        headers = {"authorization": f"Bearer {self.access.key}", **(headers or {})}
        url = self.access.url + "/chat/completions"
        async with self.http.post(url, json=body, headers=headers) as answer:
            if not more.get("stream"):
                said = await answer.json()
                assert answer.status == 200, said
                return said["choices"][0]["message"]
            return _joined(await answer.text())

    async def trace(self) -> Trace:
        return await self.recorder.close(self.access)


@contextlib.asynccontextmanager
async def talking(model: ScriptedModel, max_tokens: int = 400, **more: Any) -> AsyncIterator[Talk]:
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(model.running())
        served = more.pop("served", Served(url, "base", deployment="p-v1"))._replace(url=url)
        more.setdefault("rendering", lambda: model.rendering)
        recorder = await stack.enter_async_context(Interception(served, **more))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Talk(recorder, await recorder.open(TICKET, Forced(0.7, max_tokens, 5)), http)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def tokens(span: Span) -> Tokens:
    assert span.call and span.call.choices[0].tokens
    return span.call.choices[0].tokens


def extends(later: Span, earlier: Span) -> bool:
    before = tokens(earlier).prompt_ids + tokens(earlier).completion_ids
    return tokens(later).prompt_ids[: len(before)] == before


def _joined(stream: str) -> dict[str, Any]:
    """The message of a stream, as OpenAI's client would put it together."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: list[Any] = []
    for line in stream.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        for choice in event["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            calls += choice["delta"].get("tool_calls", [])
    assert stream.endswith("data: [DONE]\n\n")
    if calls:
        message |= {"content": message["content"] or None, "tool_calls": calls}
    return message


def run(talk: Callable[[], Any]) -> Any:
    return asyncio.run(talk())


@pytest.mark.parametrize("stream", [False, True])
def test_ids_of_a_turn_extend_those_of_the_turn_before(rendering: Rendering, stream: bool) -> None:
    # Two spaces and "1 2" are tokens that no tokenizer would make of the text again.
    model = ScriptedModel(rendering, lambda prompt: f"seen  {prompt.count('user')} 1 2")

    async def go() -> Trace:
        async with talking(model) as talk:
            history: list[Any] = [user("3 1 2")]
            for turn in range(4):
                history.append(await talk.ask(history, stream=stream))
                history.append(user(f"again {turn}"))
            return await talk.trace()

    trace = run(go)
    later = trace.spans[1:]
    assert [span.parents for span in trace.spans] == [(), *[(f"call-000{k}",) for k in range(3)]]
    assert [route for route, _ in model.asked] == ["/v1/chat/completions", *["/v1/completions"] * 3]
    assert all(span.attributes["bridge"] == "exact" for span in later)
    for earlier, span in zip(trace.spans, later, strict=False):
        assert extends(span, earlier)
        found = tokens(span)
        assert found.logprobs == tuple(-token / 1000 for token in found.completion_ids)
        assert found.template_digest == rendering.template_digest
        assert span.call and span.call.choices[0].finish_reason == "stop"
        assert span.call.choices[0].message.text.startswith("seen  ")
    # The template's own rendering of the whole, since nothing was lost on the way.
    assert list(tokens(trace.spans[3]).prompt_ids) == rendering.render_prompt(
        trace.spans[3].call.input
    )
    assert model.asked[3][1]["seed"] != model.asked[2][1]["seed"]


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_are_parsed_from_what_was_sampled(
    rendering: Rendering, stream: bool
) -> None:
    model = ScriptedModel(
        rendering, lambda prompt: "done" if prompt.count("ready") > 1 else f"so {CALLS}"
    )

    async def go() -> tuple[list[Any], Trace]:
        async with talking(model) as talk:
            history: list[Any] = [user("look twice")]
            for _ in range(3):
                said = await talk.ask(history, stream=stream and len(history) > 1, tools=[TOOL])
                history.append(said)
                for call in said.get("tool_calls", ()):
                    content = {"role": "tool", "tool_call_id": call["id"], "content": "ready"}
                    history.append(content)
            return history, await talk.trace()

    history, trace = run(go)
    second = trace.spans[1].call
    assert second and second.choices[0].finish_reason == "stop"
    first = trace.spans[0].call
    assert first and first.choices[0].finish_reason == "tool_calls"
    assert [call["function"]["arguments"] for call in history[1]["tool_calls"]] == [
        '{"at":  1}', '{"at": 2}',
    ]  # fmt: skip
    assert history[-1]["content"] == "done" or history[4]["content"] == "done"
    assert extends(trace.spans[1], trace.spans[0])


def test_a_later_turn_gives_calls_with_ids_of_their_own(rendering: Rendering) -> None:
    model = ScriptedModel(rendering, lambda prompt: CALLS if "go" in prompt else "hm")

    async def go() -> tuple[Any, Any, Trace]:
        async with talking(model) as talk:
            said = await talk.ask([user("wait")], tools=[TOOL])
            history = [user("wait"), said, user("go")]
            whole = await talk.ask(history, tools=[TOOL])
            streamed = await talk.ask(history, tools=[TOOL], stream=True)
            return whole, streamed, await talk.trace()

    whole, streamed, trace = run(go)
    assert [call["id"] for call in whole["tool_calls"]] == ["call-0001-0-0", "call-0001-0-1"]
    assert [call["function"] for call in streamed["tool_calls"]] == [
        call["function"] for call in whole["tool_calls"]
    ]
    assert [span.parents for span in trace.spans] == [(), ("call-0000",), ("call-0000",)]
    one, other = (span.call.choices[0] for span in trace.spans[1:] if span.call)
    assert one.finish_reason == other.finish_reason == "tool_calls"
    assert one.tokens == other.tokens and one.message.parts[0] != ()


def test_an_answer_that_was_cut_at_its_bound_is_closed_before_the_next_turn(
    rendering: Rendering,
) -> None:
    model = ScriptedModel(rendering, lambda prompt: "a long answer that has no end in sight")

    async def go() -> Trace:
        async with talking(model, max_tokens=6) as talk:
            said = await talk.ask([user("go")], max_tokens=5)
            await talk.ask([user("go"), said, user("on")])
            return await talk.trace()

    first, second = run(go).spans
    assert first.call and first.call.choices[0].finish_reason == "length"
    assert (first.call.sampling.max_tokens, second.call.sampling.max_tokens) == (5, 6)
    assert len(tokens(first).completion_ids) == 5
    assert extends(second, first)
    before = len(tokens(first).prompt_ids) + 5
    assert tokens(second).prompt_ids[before] == rendering.stop_ids[0]


def test_what_no_longer_is_the_same_history_is_a_branch(rendering: Rendering) -> None:
    model = ScriptedModel(rendering, lambda prompt: "an answer")

    async def go() -> Trace:
        async with talking(model) as talk:
            said = await talk.ask([user("one")], tools=[TOOL])
            edited = {**said, "content": "another answer"}
            await talk.ask([user("one"), edited, user("two")], tools=[TOOL])
            await talk.ask([user("one"), said, user("two")])
            await talk.ask([user("a summary of all"), user("three")], tools=[TOOL])
            await talk.ask([user("one")], tools=[TOOL])
            return await talk.trace()

    root, edited, other_tools, compacted, again = run(go).spans
    assert [span.parents for span in (edited, other_tools, compacted, again)] == [
        ("call-0000",), ("call-0000",), (), (),
    ]  # fmt: skip
    assert not extends(edited, root) and not extends(other_tools, root)
    assert "tools" in other_tools.attributes["bridge"] and "bridge" not in edited.attributes
    assert {route for route, _ in model.asked} == {"/v1/chat/completions"}


def test_what_a_client_loses_on_the_way_changes_nothing(rendering: Rendering) -> None:
    """Reasoning, ids of calls, the spacing of their JSON, an empty content, fields of null."""
    model = ScriptedModel(rendering, lambda prompt: CALLS)

    async def go() -> Trace:
        async with talking(model) as talk:
            await talk.ask([user("look")], tools=[TOOL])
            calls = [
                {
                    "type": "function",
                    "function": {"name": "look", "arguments": json.dumps({"at": at})},
                }
                for at in (1, 2)
            ]
            back = {
                "role": "assistant", "content": "", "tool_calls": calls, "refusal": None,
                "reasoning_content": "hm", "annotations": [],
            }  # fmt: skip
            results = [{"role": "tool", "tool_call_id": "", "content": "ready"}] * 2
            await talk.ask([user("look"), back, *results], tools=[TOOL])
            return await talk.trace()

    first, second = run(go).spans
    assert second.attributes["bridge"] == "exact" and extends(second, first)


def test_without_the_same_template_the_server_lays_out_every_turn(rendering: Rendering) -> None:
    model = ScriptedModel(rendering, lambda prompt: "an answer")
    other = Served("", "base", template_digest="another", tokenizer_digest="t")
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"served": other}, "chat template is another"),
        ({"rendering": None}, "no tokenizer"),
        ({"served": other._replace(tokens=False)}, None),
    ]

    async def go(more: dict[str, Any]) -> Trace:
        async with talking(model, **more) as talk:
            said = await talk.ask([user("one")])
            await talk.ask([user("one"), said, user("two")])
            return await talk.trace()

    for more, why in cases:
        _, second = asyncio.run(go(dict(more))).spans
        assert second.parents == ("call-0000",)
        assert (why or "None") in str(second.attributes.get("bridge"))
    assert {route for route, _ in model.asked} == {"/v1/chat/completions"}
    assert "return_token_ids" not in model.asked[-1][1] and "logprobs" not in model.asked[-1][1]


def test_a_request_that_lays_out_its_prompt_otherwise_is_no_part_of_a_line(
    rendering: Rendering,
) -> None:
    model = ScriptedModel(rendering, lambda prompt: "an answer")

    async def go() -> Trace:
        async with talking(model) as talk:
            said = await talk.ask([user("one")], tools=[TOOL], tool_choice="required")
            history = [user("one"), said, user("two")]
            await talk.ask(history, tools=[TOOL])
            await talk.ask(history, tools=[TOOL], chat_template_kwargs={"thinking": True})
            await talk.ask(history, tools=[TOOL], tool_choice="auto")
            return await talk.trace()

    spans = run(go).spans
    assert [span.parents for span in spans[1:]] == [("call-0000",)] * 3
    assert all("laid out" in span.attributes["bridge"] for span in spans[1:])
    assert tokens(spans[2]).template_digest is None and tokens(spans[1]).template_digest
    assert spans[0].call and spans[0].call.sampling.other["tool_choice"] == "required"


def test_several_choices_are_branches_and_the_one_that_goes_on_is_known(
    rendering: Rendering,
) -> None:
    model = ScriptedModel(rendering, lambda prompt: "an answer")

    async def go() -> Trace:
        async with talking(model) as talk:
            said = await talk.ask([user("one")], n=3)
            await talk.ask([user("one"), said, user("two")], n=2, stop=["never"])
            return await talk.trace()

    first, second = run(go).spans
    assert first.call and len(first.call.choices) == 3
    assert second.call and len(second.call.choices) == 2
    assert second.parents == ("call-0000",) and extends(second, first)
    assert model.asked[1][1]["stop"] == ["never"] and model.asked[1][1]["n"] == 2


def test_a_stop_string_ends_an_answer_with_the_servers_text(rendering: Rendering) -> None:
    model = ScriptedModel(rendering, lambda prompt: "cut here and more")

    async def go() -> tuple[Any, Trace]:
        async with talking(model) as talk:
            said = await talk.ask([user("one")])
            history = [user("one"), said, user("two")]
            said = await talk.ask(history, stop=["here"])
            await talk.ask([*history, said, user("three")])
            return said, await talk.trace()

    said, trace = run(go)
    assert said["content"] == "cut "
    assert rendering.decode(tokens(trace.spans[1]).completion_ids) == "cut here"
    assert extends(trace.spans[2], trace.spans[1])


@pytest.mark.parametrize("stream", [False, True])
def test_a_later_turn_that_breaks_off_never_looks_complete(
    rendering: Rendering, stream: bool
) -> None:
    model = ScriptedModel(rendering, lambda prompt: "an answer of some words")

    async def go() -> Trace:
        async with talking(model) as talk:
            said = await talk.ask([user("one")])
            model.cut_after, model.fail = 3, None if stream else (500, "out of memory")
            with pytest.raises(AssertionError):
                await talk.ask([user("one"), said, user("two")], stream=stream)
            return await talk.trace()

    _, second = run(go).spans
    assert second.error and second.call and second.attributes["status"] == 502
    if stream:
        (choice,) = second.call.choices
        assert choice.finish_reason is None and choice.message.text
        assert choice.tokens and len(choice.tokens.completion_ids) == 3
    else:
        assert "out of memory" in second.error and not second.call.choices


class Thinking(Rendering):
    """A template of a model that thinks aloud; `keeps` = its next turn keeps what was thought."""

    keeps = True

    def parse(self, completion_ids: Any, tools: Any = ()) -> Answer:
        answer = super().parse(completion_ids, tools)
        thought, closed, rest = answer.message.text.partition("</think>")
        if not closed:
            return answer
        parts = Reasoning(text=thought.removeprefix("<think>")), Text(text=rest)
        return Answer(Message(role="assistant", parts=parts), answer.finish_reason)

    def bridge(self, *given: Any, **more: Any) -> list[int] | None:
        return super().bridge(*given, **more) if self.keeps else None


@pytest.mark.parametrize("stream", [False, True])
def test_a_thought_that_the_harness_drops_stays_where_the_template_keeps_it(
    rendering: Rendering, stream: bool
) -> None:
    thinking = Thinking(rendering.tokenizer, rendering.renderer)
    model = ScriptedModel(thinking, lambda prompt: "<think>2 or 3</think>3")

    async def go() -> tuple[Any, Trace]:
        async with talking(model) as talk:
            history: list[Any] = [user("one")]
            for _ in range(3):
                thinking.keeps = len(history) < 5
                said = await talk.ask(history, stream=stream and len(history) == 3)
                history += [{"role": "assistant", "content": said["content"]}, user("more")]
            return said, await talk.trace()

    said, trace = run(go)
    first, second, third = trace.spans
    assert said["content"] == "3"
    assert second.attributes["bridge"] == "exact" and extends(second, first)
    assert "2 or 3" in rendering.decode(tokens(second).prompt_ids)
    assert second.call and second.call.choices[0].message.parts[0] == Reasoning(text="2 or 3")
    assert "does not keep" in third.attributes["bridge"] and not extends(third, second)
    assert third.parents == ("call-0001",)
    assert "2 or 3" not in rendering.decode(tokens(third).prompt_ids)


def test_any_graph_of_histories_becomes_paths_that_train_every_token_once(
    rendering: Rendering,
) -> None:
    """Histories that go on from random earlier ones, two at a time, some with edits or tools."""
    dice = random.Random(3)
    model = ScriptedModel(rendering, lambda prompt: f"{len(prompt)} {dice.randrange(10)}")

    async def go() -> Trace:
        async with talking(model, max_tokens=200) as talk:
            known: list[list[Any]] = [[]]

            async def step(number: int) -> None:
                start = dice.choice(known[-8:])
                history = [*start, user(f"{number}")]
                if start and dice.random() < 0.2:
                    history[-2] = {**history[-2], "content": "edited"}
                tools = [TOOL] if dice.random() < 0.2 else []
                said = await talk.ask(history, stream=dice.random() < 0.3, tools=tools or None)
                known.append([*history, said])

            for number in range(12):
                await asyncio.gather(step(2 * number), step(2 * number + 1))
            return await talk.trace()

    trace = run(go)
    found = paths_of(trace)
    assert len(trace.spans) == 24 and not found.left_out
    trained = [
        (span, token)
        for path in found.paths
        for span, token, kept in zip(path.spans, path.token_ids, path.mask, strict=True)
        if kept
    ]
    sampled = [(span.id, token) for span in trace.spans for token in tokens(span).completion_ids]
    assert sorted(trained) == sorted(sampled)
    exact = {span.id for span in trace.spans if span.attributes.get("bridge") == "exact"}
    gone_on = {segment.span_id for path in found.paths for segment in path.segments[1:]}
    assert exact and exact <= gone_on


class Failing(Rendering):
    """A renderer with a fault of its own."""

    fails = ""

    def parse(self, *given: Any, **more: Any) -> Answer:
        if self.fails == "parse":
            raise IndexError("no such token")
        return super().parse(*given, **more)

    def bridge(self, *given: Any, **more: Any) -> list[int] | None:
        if self.fails == "bridge":
            raise IndexError("no such token")
        found = super().bridge(*given, **more)
        return found[1:] if found and self.fails == "shift" else found


@pytest.mark.parametrize("fails", ["bridge", "parse", "shift"])
def test_a_renderers_fault_costs_a_branch_or_a_parse_and_no_record(
    rendering: Rendering, fails: str
) -> None:
    failing = Failing(rendering.tokenizer, rendering.renderer)
    model = ScriptedModel(rendering, lambda prompt: "an answer")

    async def go() -> Trace:
        async with talking(model, rendering=lambda: failing) as talk:
            said = await talk.ask([user("one")])
            failing.fails = fails
            await talk.ask([user("one"), said, user("two")])
            return await talk.trace()

    _, second = run(go).spans
    assert second.call and second.call.choices[0].message.text.startswith("an answer")
    assert tokens(second) and second.parents == ("call-0000",)
    expected = {"bridge": "the renderer failed: IndexError", "parse": "exact", "shift": "begin"}
    assert expected[fails] in second.attributes["bridge"]

import asyncio
from typing import Any

import pytest

from environments.define import Environment
from environments.harnesses.contract import Budget, Conversation, Correcting, Episode, Tool
from environments.harnesses.user import ScriptedUser, answer
from flywheel.records import Image, Part, Text, last_answer, model_spans, say
from tests.environments.playing import ended, play, problem, says, spans

OPENING = problem()
SILENT = type(OPENING)(environment="e", messages=(say("system", "You help."),))
PIXEL = "data:image/png;base64,iVBORw0KGgo="


class Talking(Environment):
    harness = Conversation(budget=Budget(turns=6))
    script = ScriptedUser(turns=("first", "second"))

    async def user(self, episode: Episode, said: str) -> str | None:
        memory = episode.state.setdefault("user", {})
        return await answer(self.script, said, memory, episode.spans)

    def tools(self, episode: Episode) -> list[Tool]:
        return [Tool("look", "", {"type": "object"}, lambda: "seen")]


def test_model_and_user_take_turns_until_the_user_leaves(engine: Any) -> None:
    engine.reply = says(lambda messages: f"heard {messages[-1]['content']}")
    (done,) = play(Talking(), engine.url)
    assert ended(done) == "answered: the user left"
    texts = [asked["messages"][-1]["content"] for asked in engine.asked]
    assert texts == ["go", "first", "second"]
    assert len(engine.asked[2]["messages"]) == 5
    memory = done.trace.attributes["state"]["user"]
    assert memory["heard"] == ["heard go", "heard first", "heard second"]
    assert memory["ended"] == "satisfied"


def test_where_nobody_has_spoken_the_user_opens(engine: Any) -> None:
    engine.reply = says(lambda messages: "yes?")
    (done,) = play(Talking(), engine.url, [SILENT])
    assert [one["content"] for one in engine.asked[0]["messages"]] == ["You help.", "first"]
    assert len(model_spans(done.trace)) == 2


def test_tools_are_called_between_the_users_words(engine: Any) -> None:
    def talk(messages: list[dict[str, Any]]) -> Any:
        return [("look", {})] if messages[-1]["content"] == "first" else messages[-1]["content"]

    engine.reply = says(talk)
    (done,) = play(Talking(), engine.url)
    assert [span.name for span in spans(done, "tool")] == ["look"]
    assert done.trace.attributes["state"]["user"]["heard"] == ["go", "seen", "second"]


def test_a_user_that_never_leaves_ends_at_the_turns_and_one_that_hangs_is_a_fault(
    engine: Any,
) -> None:
    class Endless(Talking):
        async def user(self, episode: Episode, said: str) -> str | None:
            if said == "hang":
                await asyncio.Event().wait()
            return f"{episode.turns}"

    engine.reply = says(lambda messages: f"about {messages[-1]['content']}")
    (done,) = play(Endless(), engine.url)
    assert ended(done) == "budget: turns" and len(model_spans(done.trace)) == 6
    engine.reply = says(lambda messages: "hang")
    config = {"harness": {"kind": "conversation", "budget": {"tool_s": 0.5}}}
    (done,) = play(Endless(config), engine.url)
    assert "took longer than 0.5 s" in done.trace.attributes["failed"]


def test_a_model_that_says_nothing_in_a_conversation_is_heard_as_nothing(engine: Any) -> None:
    from tests.environments.conftest import answer as completed

    nothing = {"role": "assistant", "content": None}
    engine.reply = lambda asked: (200, completed(asked, message=nothing))
    (done,) = play(Talking(), engine.url)
    assert ended(done) == "answered nothing"
    said = [one for one in engine.asked[1]["messages"] if one["role"] == "assistant"]
    assert said == [{"role": "assistant", "content": ""}]


def test_a_model_that_says_the_same_whatever_it_hears_is_stopped(engine: Any) -> None:
    class Patient(Talking):
        async def user(self, episode: Episode, said: str) -> str | None:
            return f"for the {episode.turns}. time"

    engine.reply = says(lambda messages: "hello")
    (done,) = play(Patient(), engine.url)
    assert ended(done) == "stopped: loop" and len(model_spans(done.trace)) == 4


class Writing(Environment):
    harness = Correcting(attempts=3)

    async def check(self, episode: Episode, answer: str) -> str | list[Part] | None:
        if answer == "see":
            return [Text(text="it looks wrong"), Image(url=PIXEL)]
        if answer == "raise":
            raise LookupError("no compiler")
        return None if answer == "right" else f"line 1: {answer!r} is not right"


def test_what_is_wrong_goes_back_until_it_passes(engine: Any) -> None:
    engine.reply = says(lambda messages: "right" if len(messages) > 1 else "wrong")
    (done,) = play(Writing(), engine.url)
    assert ended(done) == "answered" and done.trace.attributes["attempts"] == 2
    told = engine.asked[1]["messages"]
    assert [one["content"] for one in told] == ["go", "wrong", "line 1: 'wrong' is not right"]
    first, second = spans(done, "tool")
    assert (first.name, first.error) == ("check", "line 1: 'wrong' is not right")
    assert second.error is None and second.result is not None
    assert [span.parents for span in (first, second)] == [
        (call.id,) for call in model_spans(done.trace)
    ]


def test_it_ends_after_so_many_attempts_with_the_last_answer(engine: Any) -> None:
    engine.reply = says(lambda messages: f"wrong {len(messages)}")
    (done,) = play(Writing(), engine.url)
    choice = last_answer(done.trace)
    assert ended(done) == "budget: attempts" and choice is not None
    assert choice.message.text == "wrong 5" and len(spans(done, "tool")) == 3


def test_a_picture_of_what_came_out_returns_to_the_model(engine: Any) -> None:
    engine.reply = says(lambda messages: "right" if len(messages) > 1 else "see")
    (done,) = play(Writing(), engine.url)
    assert engine.asked[1]["messages"][-1]["content"] == [
        {"type": "text", "text": "it looks wrong"},
        {"type": "image_url", "image_url": {"url": PIXEL}},
    ]
    assert ended(done) == "answered"


@pytest.mark.parametrize("said", ["raise"])
def test_a_check_that_raises_is_the_environments_fault(engine: Any, said: str) -> None:
    engine.reply = says(lambda messages: said)
    (done,) = play(Writing(), engine.url)
    assert "no compiler" in done.trace.attributes["failed"]

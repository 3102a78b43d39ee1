"""Inputs longer than the window of the model: a scripted engine that refuses them as ours does."""

from typing import Any

import pytest

from environments.define import Environment
from environments.grading import why_ungradable
from environments.harnesses.contract import Budget, Compacting, Episode, Recursive, Tool
from environments.harnesses.long_input import split, taken_apart
from flywheel.records import Problem, last_answer, main_spans, model_spans, say
from tests.environments.playing import ended, play, problem, says, spans

WINDOW = 900
"""Characters that the scripted engine takes."""
FACTS = [f"Fact {n}: the code of room {n} is {n * 7}." for n in range(60)]
LONG = problem("\n".join(FACTS) + "\n\nWhat is the code of room 42?")
SHORT = problem("Fact 42: the code of room 42 is 294.\n\nWhat is the code of room 42?")


def reads(messages: list[dict[str, Any]]) -> Any:
    """Finds the fact in what it is shown; refuses more than its window holds."""
    shown = "\n".join(str(one["content"]) for one in messages)
    if len(shown) > WINDOW:
        return 400, f"the prompt has {len(shown)} tokens; prompt and answer together may have 900"
    assert "What is the code of room 42?" in shown
    return "room 42: 294" if "294" in shown else "nothing"


class Reading(Environment):
    harness = Recursive(part=500, depth=2, budget=Budget(turns=40))


def test_the_parts_of_a_text_are_the_text() -> None:
    text = "\n".join(FACTS)
    parts = split(text, 200)
    assert "".join(parts) == text and max(map(len, parts)) <= 200
    assert all(part.endswith("\n") for part in parts[:-1])
    assert split("x" * 450, 200) == ["x" * 200, "x" * 200, "x" * 50]
    assert split("", 9) == [""] and split("abc", 3) == ["abc"]


def test_the_question_is_found_beside_or_at_the_end_of_the_text() -> None:
    assert taken_apart(LONG).question == "What is the code of room 42?"
    beside = Problem(
        environment="e", messages=(say("system", "s"), say("user", "x" * 99), say("user", "why?"))
    )
    assert taken_apart(beside)[1:] == ("x" * 99, "why?")
    given = Problem(environment="e", messages=beside.messages, attributes={"question": "who?"})
    assert taken_apart(given).question == "who?" and len(taken_apart(given).before) == 1


def test_a_long_input_is_read_in_parts_by_sub_agents_and_combined(engine: Any) -> None:
    engine.reply = says(reads)
    (done,) = play(Reading(), engine.url, [LONG])
    choice, calls = last_answer(done.trace), model_spans(done.trace)
    assert choice is not None and choice.message.text == "room 42: 294"
    assert ended(done) == "answered"
    agents = {span.id: span for span in spans(done, "agent")}
    parts = [span for name, span in agents.items() if name.startswith("part-1-")]
    assert len(calls) == len(parts) + 1 and len(parts) >= 4
    assert all(span.parents == ("level-1",) for span in parts)
    assert {span.parents for span in calls[:-1]} == {(span.id,) for span in parts}
    assert calls[-1].parents == ("level-1",), "the whole comes of all parts"


def test_what_fits_is_asked_at_once(engine: Any) -> None:
    engine.reply = says(reads)
    (done,) = play(Reading(), engine.url, [SHORT])
    assert len(model_spans(done.trace)) == 1 and spans(done, "agent") == []


def test_notes_that_are_too_long_are_read_one_level_deeper_and_no_deeper(engine: Any) -> None:
    engine.reply = says(lambda messages: "many words " * 20)
    (done,) = play(Reading(), engine.url, [LONG])
    levels = [span.id for span in spans(done, "agent") if span.id.startswith("level")]
    assert sorted(levels) == ["level-1", "level-2"] and ended(done) == "answered"


def test_a_part_that_the_engine_has_no_room_for_is_halved(engine: Any) -> None:
    engine.reply = says(reads)
    large = Reading({"harness": {"kind": "recursive", "part": 1500, "budget": {"turns": 40}}})
    (done,) = play(large, engine.url, [LONG])
    choice = last_answer(done.trace)
    assert choice is not None and choice.message.text == "room 42: 294"
    assert {span.id for span in spans(done, "agent")} >= {"part-1-0", "part-1-0-0", "part-1-0-1"}


def test_turns_that_do_not_suffice_for_all_parts_are_not_begun_and_said(engine: Any) -> None:
    engine.reply = says(reads)
    few = Reading({"harness": {"kind": "recursive", "part": 300, "budget": {"turns": 3}}})
    (done,) = play(few, engine.url, [LONG])
    assert ended(done) == "budget: turns" and engine.asked == []
    assert done.trace.attributes["turns_needed"] > 5


class Working(Environment):
    """Looks up page after page, each of which alone is half of the window."""

    harness = Compacting(at=700, keep=2, budget=Budget(turns=40))

    def tools(self, episode: Episode) -> list[Tool]:
        def page(number: int) -> str:
            return f"page {number} " + ("294 " if number == 3 else "empty ") + "." * 250

        schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
        return [Tool("page", "", schema, page)]


def works(messages: list[dict[str, Any]]) -> Any:
    shown = "\n".join(str(one["content"]) for one in messages)
    if len(shown) > WINDOW:
        return 400, "This model's maximum context length is 900 tokens"
    if shown.startswith("You keep the memory"):
        return "seen: " + ("294" if "294" in shown else "nothing")
    tools = [one["content"] for one in messages if one["role"] == "tool"]
    turn = works.turn = getattr(works, "turn", 0) + 1  # type: ignore[attr-defined]
    return [("page", {"number": turn})] if turn < 6 else f"{len(tools)} {'294' in shown}"


def test_a_history_is_summarised_at_its_budget_and_the_fork_recorded(engine: Any) -> None:
    engine.reply = says(works)
    (done,) = play(Working(), engine.url, [problem("Which page has a number?")])
    choice, calls = last_answer(done.trace), model_spans(done.trace)
    assert choice is not None and choice.message.text.endswith("True"), "the memory was kept"
    assert done.trace.attributes["compacted"] >= 2 and ended(done) == "answered"
    compacts = spans(done, "agent")
    for span in compacts:
        assert len(span.parents) == 1 and span.parents[0] in {call.id for call in calls}
        under = [call for call in calls if call.parents == (span.id,)]
        assert under, "the summary's calls"
        (onward,) = [call for call in calls if call.parents == (under[-1].id,)]
        main = [call.id for call in main_spans(done.trace)]
        assert onward.call is not None and onward.id in main
        assert not {call.id for call in under} & set(main), "no summary is an answer"
        first = onward.call.input[0]
        assert first.text.startswith("Which page has a number?") and "seen: " in first.text
    for asked in engine.asked:
        roles = [one["role"] for one in asked["messages"]]
        assert "tool" not in roles or roles.index("assistant") < roles.index("tool")


def test_a_first_input_longer_than_the_window_is_summarised_before_anything_else(
    engine: Any,
) -> None:
    engine.reply = says(reads)
    plain = Environment({"harness": {"kind": "compacting", "at": 600, "budget": {"turns": 60}}})
    (done,) = play(plain, engine.url, [LONG])
    choice = last_answer(done.trace)
    assert choice is not None and choice.message.text == "room 42: 294"


def test_an_engines_refusal_compacts_too_and_a_window_too_small_for_anything_is_an_end(
    engine: Any,
) -> None:
    engine.reply = says(reads)
    late = Environment({"harness": {"kind": "compacting", "at": 1400, "budget": {"turns": 60}}})
    middle = problem("\n".join(FACTS[20:45]) + "\n\nWhat is the code of room 42?")
    (done,) = play(late, engine.url, [middle])
    known = {span.id for span in done.trace.spans}
    assert all(known.issuperset(span.parents) for span in done.trace.spans)
    choice = last_answer(done.trace)
    assert choice is not None and choice.message.text == "room 42: 294"
    engine.reply = says(lambda messages: (400, "maximum context length is 3 tokens"))
    (done,) = play(late, engine.url, [middle])
    assert ended(done) == "budget: window"


@pytest.mark.parametrize("environment", [Reading(), Working()])
def test_an_engine_that_fails_amid_a_long_input_fails_the_episode(
    engine: Any, environment: Environment
) -> None:
    engine.reply = says(
        lambda messages: (503, "gone") if len(messages[0]["content"]) > 300 else "yes"
    )
    done = play(environment, engine.url, [LONG, SHORT], tries=1)
    assert sorted(one.infrastructure for one in done) == [False, True]


def test_an_episode_that_ends_amid_its_summaries_has_no_answer(engine: Any) -> None:
    engine.reply = says(reads)
    plain = Environment({"harness": {"kind": "compacting", "at": 600, "budget": {"turns": 2}}})
    (done,) = play(plain, engine.url, [LONG])
    assert ended(done) == "budget: turns" and len(model_spans(done.trace)) == 2
    assert (
        last_answer(done.trace) is None and why_ungradable(done.trace) == "no answer was recorded"
    )

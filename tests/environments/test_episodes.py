import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from environments.define import Environment
from environments.episodes import Run, episodes
from environments.grading import Item, grade_all, why_ungradable
from environments.harnesses.asking import ask
from environments.harnesses.contract import Budget, Correcting, Episode, Single, Tools
from environments.load import load_environment
from environments.marks import cleanup, reward, setup, stop
from environments.runtimes.contract import Runtime, RuntimeFailure, Trusted
from environments.runtimes.pool import Pool
from flywheel.errors import EngineError
from flywheel.ids import seed_of
from flywheel.records import Problem, Span, last_answer, model_spans, say, trace_id
from serving.interception import Interception, Served
from tests.environments.playing import ended, play, problem, says
from tests.reading_docs import ROOT, blocks

GONE = "http://127.0.0.1:9"


class Quits(Environment):
    """What ends the program in anybody's hook ends an episode."""

    @cleanup
    async def last(self) -> None:
        raise SystemExit(3)

    async def act(self, episode: Episode) -> None:
        raise SystemExit(0)


class Around(Environment):
    """Set up and cleaned up; `state` says in which order."""

    harness = Single()

    @setup
    def first(self, state: dict[str, Any], problem: Problem) -> None:
        state["did"] = ["setup"]

    @cleanup
    async def last(self, state: dict[str, Any], answer: str) -> None:
        state["did"] += ["cleanup", answer]

    @reward(truth=False)
    def length(self, answer: str) -> int:
        return len(answer)


def test_ids_and_seeds_come_from_run_problem_and_k_and_from_no_clock(engine: Any) -> None:
    problems = [problem("a"), problem("b")]
    done = play(Around(), engine.url, problems, samples=2, side="champion")
    assert {one.trace.id for one in done} == {
        trace_id("p", "rollout:run:champion", f"{one.id}/{k}") for one in problems for k in (0, 1)
    }
    seeds = sorted(asked["seed"] for asked in engine.asked)
    assert seeds == sorted(
        seed_of(seed_of("run", one.id, k), 0) for one in problems for k in (0, 1)
    )
    again = play(Around(), engine.url, problems, samples=2, side="champion")
    assert {one.trace.id for one in again} == {one.trace.id for one in done}
    attributes = done[0].trace.attributes
    assert attributes["side"] == "champion" and attributes["environment"] == "around"
    assert done[0].trace.attempt in (0, 1) and done[0].trace.run_id == "run"


def test_an_episode_is_set_up_played_and_cleaned_up_and_its_state_is_kept(engine: Any) -> None:
    engine.reply = says(lambda messages: "well")
    (done,) = play(Around(), engine.url)
    assert done.trace.attributes["state"] == {"did": ["setup", "cleanup", "well"]}
    assert ended(done) == "answered" and done.grades == []


def test_what_is_no_json_in_the_state_is_left_out(engine: Any) -> None:
    class Odd(Environment):
        @setup
        def first(self, state: dict[str, Any]) -> None:
            state |= {"lock": object(), "half": "\ud83d", "n": 1, "large": "x" * 2**21}
            state["itself"] = state

    (done,) = play(Odd(), engine.url)
    assert done.trace.attributes["state"] == {"n": 1}


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ("", "answered nothing"),
        (" \n", "answered nothing"),
        ("fine", "answered"),
    ],
)
def test_how_an_answer_ends_an_episode(engine: Any, said: str, how: str) -> None:
    engine.reply = says(lambda messages: said)
    (done,) = play(Around(), engine.url)
    assert ended(done) == how and "failed" not in done.trace.attributes


def test_a_refusal_and_an_answer_that_is_cut_say_so(engine: Any) -> None:
    from tests.environments.conftest import answer

    refusal = {"role": "assistant", "content": None, "refusal": "I will not"}
    engine.reply = lambda asked: (200, answer(asked, message=refusal))
    (done,) = play(Around(), engine.url)
    assert ended(done) == "refused"
    engine.reply = lambda asked: (200, answer(asked, finish_reason="length"))
    (done,) = play(Around(), engine.url)
    assert str(ended(done)).startswith("cut: ")


class Own(Environment):
    """A harness of one's own: the problem's text says what it does wrong."""

    harness = Tools(budget=Budget(turns=3))

    async def act(self, episode: Episode) -> None:
        script = episode.problem.messages[0].text
        said = await ask(episode, episode.problem.messages)
        if script == "hang":
            await asyncio.Event().wait()
        if script == "span":
            episode.spans.append(Span(id=said.span, kind="tool"))
        if script == "raise":
            raise LookupError("my own fault")
        if script == "twice":
            await ask(episode, episode.problem.messages)
        while script == "swallow":
            with contextlib.suppress(Exception):
                await ask(episode, [say("user", f"{episode.turns}")])
        episode.notes["own"] = said.span

    @cleanup
    def told(self, state: dict[str, Any]) -> None:
        state["cleaned"] = True


def test_an_environment_may_be_its_own_harness(engine: Any) -> None:
    (done,) = play(Own(), engine.url)
    assert ended(done) == "answered"
    assert done.trace.attributes["own"] == model_spans(done.trace)[0].id


@pytest.mark.parametrize(("script", "calls"), [("hang", 1), ("swallow", 3)])
def test_a_harness_that_never_stops_ends_at_its_wall_time(
    engine: Any, script: str, calls: int
) -> None:
    short = Own({"harness": {"kind": "tools", "budget": {"turns": 3, "wall_s": 1.0}}})
    (done,) = play(short, engine.url, [problem(script)])
    assert ended(done) == "budget: wall" and done.trace.attributes["state"] == {"cleaned": True}
    assert len(model_spans(done.trace)) <= calls and "failed" not in done.trace.attributes


def test_a_harness_that_raises_is_recorded_with_its_traceback_and_graded_null(engine: Any) -> None:
    (bad, good) = sorted(
        play(Own(), engine.url, [problem("raise"), problem("fine")]),
        key=lambda one: "failed" not in one.trace.attributes,
    )
    attributes = bad.trace.attributes
    assert attributes["failed_by"] == "environment" and "my own fault" in attributes["failed"]
    assert "test_episodes.py" in attributes["failed"] and attributes["state"] == {"cleaned": True}
    assert why_ungradable(good.trace) is None
    ((grade,),) = grade_all(Around(), [Item(bad.trace, problem("raise"))])
    assert grade.value is None and "my own fault" in (grade.reason or "")


def test_a_harness_that_takes_the_id_of_a_recorded_call_fails_its_own_episode(engine: Any) -> None:
    done = play(Own(), engine.url, [problem("span"), problem("fine")])
    failed = [one.trace.attributes.get("failed") for one in done]
    assert sum("id of a recorded call" in str(one) for one in failed) == 1 and None in failed


def test_a_set_up_or_a_clean_up_that_raises(engine: Any) -> None:
    class Broken(Environment):
        @setup
        def first(self, problem: Problem) -> None:
            if problem.messages[0].text == "setup":
                raise RuntimeError("no setup")

        @cleanup
        def last(self, problem: Problem) -> None:
            raise RuntimeError("no cleanup")

    (done,) = play(Broken(), engine.url, [problem("setup")])
    assert "no setup" in done.trace.attributes["failed"] and engine.asked == []
    (done,) = play(Broken(), engine.url, [problem("clean")])
    assert "failed" not in done.trace.attributes, "what the model did stays what it did"
    assert "no cleanup" in done.trace.attributes["cleanup"]


def test_what_infrastructure_failed_is_played_again(engine: Any) -> None:
    reply, left = engine.reply, itertools.count()
    engine.reply = lambda asked: (503, {}) if next(left) < 2 else reply(asked)
    (done,) = play(Around(), engine.url)
    assert ended(done) == "answered" and "failed" not in done.trace.attributes
    assert len(model_spans(done.trace)) == 1 and len(engine.asked) == 3


def test_what_infrastructure_failed_at_every_try_is_null_beside_what_went_well(engine: Any) -> None:
    engine.reply = says(lambda said: (500, "boom") if said[0]["content"] == "bad" else "good")
    done = play(Around(), engine.url, [problem("bad"), problem("good")])
    (bad,) = [one for one in done if one.infrastructure]
    assert "boom" in bad.trace.attributes["failed"] and len(engine.asked) == 4
    ((grade,),) = grade_all(Around(), [Item(bad.trace, problem("bad"))])
    assert grade.value is None and "boom" in (grade.reason or "")


def test_an_engine_that_is_gone_ends_the_run_with_its_reason() -> None:
    with pytest.raises(EngineError, match=r"all 2 episodes failed: .*cannot be reached"):
        play(Around(), GONE, [problem("a"), problem("b")])


def test_a_run_whose_engine_goes_amid_it_does_not_spin(engine: Any) -> None:
    left = itertools.count()
    engine.reply = says(lambda messages: "well" if next(left) < 1 else (503, "gone"))
    endless = (problem(str(number)) for number in itertools.count())
    with pytest.raises(EngineError, match="8 episodes in a row failed"):
        play(Around(), engine.url, endless, concurrency=2)
    assert len(engine.asked) < 40


def test_a_prompt_that_has_no_room_is_an_end_and_another_refusal_a_failed_call(engine: Any) -> None:
    engine.reply = says(lambda messages: (400, messages[0]["content"]))
    too_long = "the maximum context length is 256 tokens"
    done = play(Around(), engine.url, [problem(too_long), problem("no such role")])
    assert len(engine.asked) == 2, "the same call would be refused again"
    by_text = {one.trace.problem_id: one.trace.attributes for one in done}
    assert by_text[problem(too_long).id]["ended"] == "budget: window"
    assert by_text[problem("no such role").id]["failed_by"] == "call"
    assert all(why_ungradable(one.trace) for one in done)


def test_attempts_are_drawn_as_there_is_room_and_leaving_early_cleans_up(engine: Any) -> None:
    cleaned: list[int] = []

    class Counted(Environment):
        @cleanup
        async def last(self, problem: Problem) -> None:
            cleaned.append(int(problem.messages[0].text))

    drawn: list[int] = []

    def attempts() -> Iterator[tuple[Problem, int]]:
        for number in itertools.count():
            drawn.append(number)
            yield problem(str(number)), 0

    async def some() -> None:
        run = Run("p", "run", "rollout", max_tokens=8, concurrency=3)
        async with Interception(Served(engine.url, "base")) as recorder:
            playing = episodes(Counted(), attempts(), recorder, run)
            async with contextlib.aclosing(playing):
                for _ in range(10):
                    await anext(playing)
                    assert len(drawn) - 10 <= 3

    asyncio.run(some())
    assert sorted(cleaned) == drawn, "those that were cut off, too"


def test_an_episode_that_answers_nothing_again_and_again_is_no_failure(engine: Any) -> None:
    engine.reply = says(lambda messages: "")
    done = play(Around(), engine.url, [problem(str(n)) for n in range(12)], concurrency=2)
    assert {ended(one) for one in done} == {"answered nothing"}
    assert all(last_answer(one.trace) for one in done)


def test_an_episode_has_a_runtime_of_its_own_and_live_rewards_are_given_while_it_is_there(
    engine: Any, tmp_path: Path
) -> None:
    class Living(Environment):
        runtime = Trusted()
        harness = Correcting(attempts=2)

        @setup
        async def files(self, runtime: Runtime, problem: Problem) -> None:
            await runtime.write("given.txt", problem.messages[0].text)

        async def check(self, episode: Episode, answer: str) -> str | None:
            assert episode.runtime is not None
            await episode.runtime.write("answer.txt", answer)
            ran = await episode.runtime.exec(["cat", "given.txt"])
            return None if ran.stdout == answer else f"expected {ran.stdout}"

        @reward(truth=False)
        async def left(self, runtime: Runtime) -> bool:
            return await runtime.read("answer.txt") == await runtime.read("given.txt")

        @reward(truth=False)
        def later(self, answer: str) -> bool:
            return bool(answer)

    engine.reply = says(lambda messages: messages[-1]["content"].removeprefix("expected "))
    environment = Living()

    def pooled() -> Pool:
        return Pool(Trusted(), tmp_path / "pool", at_once=2)

    done = play(environment, engine.url, [problem("a"), problem("b")], pool=pooled)
    assert [[grade.reward for grade in one.grades] for one in done] == [["left"], ["left"]]
    assert [one.grades[0].value for one in done] == [1.0, 1.0]
    assert not list((tmp_path / "pool").glob("*")), "the workspaces are gone"


def test_a_runtime_that_fails_is_infrastructure(engine: Any, tmp_path: Path) -> None:
    class Failing(Environment):
        runtime = Trusted()
        broken = itertools.count()

        @setup
        async def files(self, runtime: Runtime) -> None:
            if next(self.broken) == 0:
                raise RuntimeFailure("the disk is full")

    (done,) = play(Failing(), engine.url, pool=lambda: Pool(Trusted(), tmp_path / "pool"))
    assert ended(done) == "answered" and len(engine.asked) == 1


@pytest.mark.parametrize("how", ["hang", "raise"])
def test_a_stop_that_hangs_or_raises_is_the_environments_fault(engine: Any, how: str) -> None:
    class Stuck(Own):
        limit_s = 0.5 if how == "hang" else 60.0

        @stop
        def never(self) -> bool:
            if how == "raise":
                raise LookupError("no stop")
            return Event().wait(3)

    (done,) = play(Stuck({"harness": {"kind": "single"}}), engine.url, [problem("twice")])
    told = "took longer than 0.5 s" if how == "hang" else "no stop"
    assert told in done.trace.attributes["failed"] and len(engine.asked) == 1


def test_the_harness_of_the_documents_plays(engine: Any, tmp_path: Path) -> None:
    (source,) = [one.text for one in blocks(ROOT / "docs/extending.md") if "second_th" in one.info]
    (tmp_path / "second_thought.py").write_text(source)
    environment = load_environment("second_thought.py:SecondThought", tmp_path)
    engine.reply = says(lambda messages: f"answer {len(messages)}")
    (done,) = play(environment, engine.url)
    choice = last_answer(done.trace)
    assert choice is not None and choice.message.text == "answer 3" and ended(done) == "answered"


def test_a_hook_that_ends_the_program_ends_its_episode_alone() -> None:
    found = play(Quits(), GONE, [problem("a"), problem("b")])
    for one in found:
        assert "SystemExit: 0" in one.trace.attributes["failed"]
        assert one.trace.attributes["failed_by"] == "environment"
        assert "SystemExit: 3" in one.trace.attributes["cleanup"]
    assert len(found) == 2

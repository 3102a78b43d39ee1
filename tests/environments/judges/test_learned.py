"""A verifier's verdict: read from one token's likeliest ones, over a real connection."""

import asyncio
import math
import pickle
from typing import Any

import pytest

from environments.define import Environment, reward, step_reward
from environments.grading import Item, grade_all
from environments.judges.contract import Judge
from environments.judges.learned import LearnedJudge
from environments.judges.verifier import QUESTION, score
from flywheel.judge_section import JudgeSection
from flywheel.records import Choice, Grade, ModelCall, Span, Trace, last_call, say
from tests.environments.judges.conftest import Opens
from tests.environments.judges.scripted_judge import Endpoint, completion


class Learned(Environment):
    @reward(truth=False)
    async def liked(self, trace: Trace, judge: Any) -> Any:
        call = last_call(trace)
        assert call
        return await judge.score_call(call)

    @step_reward(truth=False)
    async def sound(self, span: Span, judge: Any) -> Any:
        return await judge.score_call(span.call)


def logprobs(**tokens: float) -> tuple[tuple[str, float], ...]:
    return tuple((token, math.log(share)) for token, share in tokens.items())


def test_a_score_is_the_share_of_yes_among_both_verdicts() -> None:
    assert score(logprobs(Yes=0.6, No=0.2, Maybe=0.2)) == pytest.approx(0.75)
    # Tokenizers may cut the words, or put a space before them.
    cut = (("Y", math.log(0.3)), (" Yes", math.log(0.3)), ("N", math.log(0.2)))
    assert score(cut) == pytest.approx(0.75)
    # What is not told is at most what is told last.
    assert score(logprobs(Yes=0.9, x=0.001)) == pytest.approx(0.9 / 0.901)
    assert score(logprobs(No=0.3, x=0.1)) == pytest.approx(0.1 / 0.4)


def test_what_the_likeliest_tokens_do_not_speak_of_is_null_with_the_reason() -> None:
    assert "its 2 likeliest tokens lack Yes and No" in str(score(logprobs(a=0.5, b=0.4)))
    assert "top_logprobs" in str(score(()))


def verdict(yes: float) -> dict[str, Any]:
    told = [{"token": token, "logprob": value} for token, value in logprobs(Yes=yes, No=1 - yes)]
    found = {"content": [{"token": "Yes", "logprob": -1.0, "top_logprobs": told}]}
    return completion("Yes", None, logprobs=found, finish_reason="length")


@pytest.fixture
def learned(judge: Opens, endpoint: Endpoint) -> LearnedJudge:
    """Finds answers good as long as they are short."""

    def said(body: dict[str, Any]) -> Any:
        answer = body["messages"][-2]["content"]
        return 200, verdict(0.9 if len(answer) < 5 else 0.2), {}

    endpoint.verdict = said
    made = judge(kind="verifier", model="desk-check-v1")
    assert isinstance(made, LearnedJudge)
    return made


def test_it_reads_the_conversation_that_it_was_trained_on(
    learned: LearnedJudge, endpoint: Endpoint
) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    choice = Choice(message=say("assistant", "fine"))
    call = ModelCall(input=(say("system", "be brief"), say("user", "ask")), choices=(choice,),
                     tools=(tool,))  # fmt: skip
    said = asyncio.run(learned.score_call(call))
    assert said.value == pytest.approx(0.9) and said.digest == learned.digest_of("score", "x")
    (body,) = endpoint.asked
    assert [one["content"] for one in body["messages"]] == ["be brief", "ask", "fine", QUESTION]
    assert (body["max_tokens"], body["logprobs"], body["tools"]) == (1, True, [tool])


def test_texts_alone_become_the_nearest_conversation(
    learned: LearnedJudge, endpoint: Endpoint
) -> None:
    better = asyncio.run(learned.compare("", "long answer", "ok", context="ask"))
    assert better.value == 0.0
    assert [one["role"] for one in endpoint.asked[0]["messages"]] == ["user", "assistant", "user"]


def test_an_endpoint_that_gives_no_likeliest_tokens_gives_no_verdict(
    learned: LearnedJudge, endpoint: Endpoint
) -> None:
    endpoint.verdict = lambda body: "Yes"
    said = asyncio.run(learned.score("", "ok"))
    assert said.value is None and "top_logprobs" in said.reason
    endpoint.verdict = lambda body: (400, {"error": {"message": "no such model"}}, {})
    said = asyncio.run(learned.score("", "ok"))
    assert said.value is None and "no such model" in said.reason


def test_it_grades_answers_and_steps_once_it_was_shown_to_agree_with_people(
    learned: LearnedJudge,
) -> None:
    spans = []
    for number, text in enumerate(("much too long", "ok")):
        choice = Choice(message=say("assistant", text), finish_reason="stop")
        call = ModelCall(input=(say("user", "ask"),), choices=(choice,))
        spans.append(Span(id=f"s{number}", kind="model", start=number, call=call))
    trace = Trace(id="t", project="shop", source="g", external_id="t", origin="production",
                  spans=tuple(spans))  # fmt: skip
    own = learned.digest_of("score", "")
    trusted = LearnedJudge(learned.section, standings={own: ""})
    given = by_name(trace, trusted)
    (liked,) = given["liked"]
    assert liked.value == pytest.approx(0.9) and liked.weight == 1.0
    assert [one.value for one in given["sound"]] == pytest.approx([0.2, 0.9])
    assert {one.weight for one in by_name(trace, learned)["liked"]} == {0.0}, "it informs only"
    assert pickle.loads(pickle.dumps(trusted)) == trusted


def by_name(trace: Trace, judge: Judge) -> dict[str, list[Grade]]:
    found: dict[str, list[Grade]] = {}
    for grade in grade_all(Learned(), [Item(trace, judge=judge)])[0]:
        found.setdefault(grade.reward, []).append(grade)
    return found


def test_only_a_verifier_is_asked_at_the_homes_own_engine() -> None:
    JudgeSection(url="home", model="desk-check", kind="verifier")
    with pytest.raises(ValueError, match="is of a verifier"):
        JudgeSection(url="home", model="m")

import asyncio
import math

import pytest

from environments.bonuses import (
    Match,
    adaptive,
    borda,
    bradley_terry,
    conciseness,
    efficiency,
    pairwise,
    schedule,
)
from environments.judges.contract import Judged
from flywheel.records import Choice, ModelCall, Span, Tokens, ToolCall, Trace, Usage, say


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(x))


def test_the_bonus_follows_the_spread_of_the_right_ones_whatever_their_length() -> None:
    right = [True, True, False, True]
    bonus = adaptive([10.0, 20.0, 1.0, 30.0], right)
    spread = math.sqrt(200 / 3)
    assert bonus == pytest.approx([sigmoid(-10 / spread), 0.5, 0.0, sigmoid(10 / spread)])
    assert adaptive([1000.0, 2000.0, 1.0, 3000.0], right) == pytest.approx(bonus)


def test_a_bonus_is_even_where_nothing_differs_and_none_where_a_cost_is_unknown() -> None:
    assert adaptive([7.0, 7.0], [True, True]) == [0.5, 0.5]
    assert adaptive([7.0, 9.0], [True, False]) == [0.5, 0.0]
    assert adaptive([None, 3.0, None], [True, True, False]) == [None, 0.5, 0.0]
    assert adaptive([], []) == []
    assert adaptive([1.0, 2.0], [False, False]) == [0.0, 0.0]


def trace(text: str, tokens: int | None = None, calls: int = 1) -> Trace:
    sampled = None if tokens is None else Tokens(prompt_ids=(1,), completion_ids=(2,) * tokens)
    asked = say("assistant", text)
    asked = type(asked)(role="assistant", parts=(*asked.parts, ToolCall(name="f", arguments="{}")))
    choice = Choice(message=asked, finish_reason="stop", tokens=sampled)
    usage = Usage(output_tokens=tokens)
    spans = tuple(
        Span(id=f"s{k}", kind="model", start=k * 10**9, end=(k + 1) * 10**9,
             call=ModelCall(input=(), choices=(choice,), usage=usage))
        for k in range(calls)
    )  # fmt: skip
    return Trace(id="t", project="p", source="s", external_id="x", origin="rollout", spans=spans)


def test_lengths_are_tokens_where_all_have_them_and_else_characters() -> None:
    short, long = trace("a long text of few tokens", 2), trace("short", 9)
    first, second = conciseness([short, long], [True, True])
    assert first is not None and second is not None and first > second
    first, second = conciseness([short, trace("short")], [True, True])
    assert first is not None and second is not None and first < second


def test_efficiency_counts_what_the_episodes_took() -> None:
    cheap, dear = trace("x", 5, calls=1), trace("x", 5, calls=3)
    for of in ("calls", "tool_calls", "tokens", "seconds"):
        low, high = efficiency([cheap, dear], [True, True], of)  # type: ignore[arg-type]
        assert low is not None and high is not None and low > 0.5 > high
    assert efficiency([cheap, dear], [True, True], "usd") == [None, None]


def test_borda_is_the_share_of_comparisons_won() -> None:
    assert borda(4, [Match(0, 1, 1.0), Match(1, 2, 0.5), Match(0, 2, 1.0)]) == [
        1.0, 0.25, 0.25, None,
    ]  # fmt: skip


def test_bradley_terry_finds_the_strengths_that_its_equation_asks_for() -> None:
    """At the fixed point each one's expected wins are its wins, the prior's half one included."""
    matches = [Match(0, 1, 1.0), Match(0, 1, 1.0), Match(1, 2, 1.0), Match(2, 0, 1.0)]
    chances = bradley_terry(3, matches)
    strength = [one / (1 - one) for one in chances if one is not None]
    won = [2.5, 1.5, 1.5]
    met = {(0, 1): 2, (1, 2): 1, (0, 2): 1}
    for i in range(3):
        expected = strength[i] / (strength[i] + 1)
        for (a, b), count in met.items():
            if i in (a, b):
                expected += count * strength[i] / (strength[a] + strength[b])
        assert expected == pytest.approx(won[i], abs=1e-6)
    (never_lost, never_won) = bradley_terry(2, [Match(0, 1, 1.0)] * 5)
    assert never_lost is not None and never_won is not None
    assert 0.5 < never_lost < 1 and never_won == pytest.approx(1 - never_lost)
    assert bradley_terry(2, []) == [None, None]


def test_a_short_schedule_meets_everyone_equally_often_and_no_pair_twice() -> None:
    assert schedule(4) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    pairs = schedule(12, rounds=2, seed=3)
    assert len(pairs) == 24 == len({frozenset(pair) for pair in pairs})
    assert [sum(k in pair for pair in pairs) for k in range(12)] == [4] * 12
    assert pairs == schedule(12, rounds=2, seed=3) != schedule(12, rounds=2, seed=4)


class Longer:
    """Prefers the longer answer; has nothing to say of "mute"."""

    asked = 0

    async def score(self, rubric: str, answer: str, **_: object) -> Judged:
        raise AssertionError("not asked for")

    async def compare(self, rubric: str, first: str, second: str, *, context: str = "") -> Judged:
        self.asked += 1
        if "mute" in (first, second):
            return Judged(None, "the budget is spent")
        return Judged(float(len(first) > len(second)), "longer")


def test_a_tournament_before_a_judge_leaves_out_what_it_could_not_decide() -> None:
    judge = Longer()
    group = [trace("aaa"), trace("b"), trace("aaa"), trace("mute")]
    values = asyncio.run(pairwise(judge, "longer is better", group, score=borda))
    assert values == [0.75, 0.0, 0.75, None]
    assert judge.asked == 5

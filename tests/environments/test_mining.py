import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from environments.define import Environment
from environments.mining import Traffic, choose, mine, sided
from environments.near import NearIndex, trigrams
from environments.split import side_of
from flywheel.curate_section import ProblemsSection
from flywheel.records import Feedback, ModelCall, Problem, Span, Trace, say

SECTION = ProblemsSection(heldout_share=0.4)
WORDS = [f"word{k}" for k in range(400)]


class Inbox(Environment):
    def slice(self, problem: Problem) -> str:
        return "partner" if "partner" in problem.text else "plain"


def trace(k: int, text: str, *, user: str | None = None, conversation: str | None = None,
          start: int | None = None, **over: Any) -> Trace:  # fmt: skip
    call = ModelCall(input=(say("system", "Sort mail."), say("user", text)))
    span = Span(id="s", kind="model", start=k if start is None else start, call=call)
    fields = {"origin": "production", "user": user, "conversation": conversation} | over
    return Trace(id=f"t{k}", project="p", source="g", external_id=str(k), spans=(span,), **fields)


def said(k: int, value: Any) -> dict[str, list[Feedback]]:
    return {f"t{k}": [Feedback(project="p", target=f"t{k}", kind="demonstration", value=value)]}


def traffic(count: int, seed: int = 0) -> tuple[list[Trace], dict[str, list[Feedback]]]:
    """Users with several conversations, some shared by two users, some of a held-out slice."""
    draw = random.Random(seed)
    traces, feedback = [], {}
    for k in range(count):
        user = f"u{draw.randrange(60)}" if draw.random() < 0.9 else None
        conversation = f"c{draw.randrange(120)}" if draw.random() < 0.9 else None
        text = " ".join(draw.choices(WORDS, k=8)) + (" partner" if draw.random() < 0.1 else "")
        if traces and draw.random() < 0.1:
            text = traces[-1].spans[0].call.input[1].text + " please"  # type: ignore[union-attr]
        traces.append(trace(k, text, user=user, conversation=conversation))
        if draw.random() < 0.8:
            feedback |= said(k, draw.randrange(3))
    return traces, feedback


def sides(problems: Sequence[Problem], field: str) -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for problem in problems:
        if getattr(problem, field):
            found[getattr(problem, field)].add(problem.split)
    return found


SLICED = ProblemsSection(heldout_share=0.4, heldout_slices=("partner",))


def test_no_user_conversation_or_near_text_is_on_both_sides() -> None:
    problems = mine(Inbox(), *traffic(600), SLICED)
    assert 150 < len(problems) < 600
    for field in ("user", "conversation", "id"):
        assert all(len(found) == 1 for found in sides(problems, field).values())
    heldout = [trigrams(p.text) for p in problems if p.split == "heldout"]
    train = [trigrams(p.text) for p in problems if p.split == "train"]
    assert heldout and train
    assert max(len(a & b) / len(a | b) for a in heldout for b in train) < 0.7
    assert {p.split for p in problems if p.slice == "partner"} == {"heldout"}


def test_order_does_not_matter_and_more_traffic_moves_nothing() -> None:
    traces, feedback = traffic(500)
    all_of_it = mine(Inbox(), traces, feedback, SLICED)
    shuffled = random.Random(1).sample(traces, len(traces))
    assert mine(Inbox(), shuffled, feedback, SLICED) == all_of_it
    earlier = {p.id: p.split for p in mine(Inbox(), traces[:200], feedback, SLICED)}
    later = {p.id: p.split for p in all_of_it}
    assert earlier.items() <= later.items()
    assert len(earlier) > 80


def test_an_earlier_asker_who_is_found_later_moves_nothing() -> None:
    """As after an import of older traffic: the problem is his from then on, on the side it has."""
    for user in map(str, range(12)):
        known = Traffic(Inbox())
        known.add(trace(2, "where is it", user=f"a{user}"), ())
        (before,) = sided(known, SECTION)
        known.add(trace(1, "where is it", user=f"b{user}"), ())
        known.add(trace(0, "where is it now", user=f"c{user}"), ())
        after = sided(known, SECTION, 0.5, {before.id: before.split})
        same = next(one for one in after if one.id == before.id)
        assert (same.user, same.split) == (f"b{user}", before.split)
        assert {one.split for one in after} == {before.split}
    heldout = ProblemsSection(heldout_share=0.01, heldout_slices=("partner",))
    (kept,) = sided(known, heldout, 0.3, {before.id: "heldout"})
    assert kept.split == "heldout"


def test_about_the_asked_share_is_held_out() -> None:
    traces = [trace(k, f"{WORDS[k % 400]} {k} x y z", user=f"u{k}") for k in range(1000)]
    problems = mine(Inbox(), traces, {}, SECTION)
    assert len(problems) == 1000
    assert 0.35 < sum(p.split == "heldout" for p in problems) / 1000 < 0.45


def test_a_prompt_asked_twice_is_one_problem_of_who_asked_first() -> None:
    traces = [trace(2, "where is it", user="b"), trace(1, "where is it", user="a")]
    (one,) = mine(Inbox(), traces, said(2, "shipping"), SECTION)
    assert (one.trace_id, one.user, one.answer, one.truth_from) == (
        "t1", "a", "shipping", "feedback",
    )  # fmt: skip
    assert "truth" not in one.attributes
    (torn,) = mine(Inbox(), traces, said(1, "billing") | said(2, "shipping"), SECTION)
    assert torn.answer is None and "conflicting feedback: 2" in torn.attributes["truth"]


def test_feedback_that_comes_later_gives_the_truth_and_moves_nothing() -> None:
    traces = [trace(1, "where is it", user="b")]
    (before,) = mine(Inbox(), traces, {}, SECTION)
    (after,) = mine(Inbox(), traces, said(1, "shipping"), SECTION)
    assert before.answer is None and before.attributes["truth"] == "no known answer"
    assert (after.id, after.split, after.answer) == (before.id, before.split, "shipping")


def test_our_own_rollouts_pose_no_problems() -> None:
    assert mine(Inbox(), [trace(1, "x", origin="rollout")], {}, SECTION) == []


def test_chosen_are_the_unseen_first_and_always_the_same() -> None:
    problems = mine(Inbox(), *traffic(300), SECTION)
    first = choose(problems, 20)
    assert first == choose(list(reversed(problems)), 20)
    assert len(first) == 20 and all(p.answer is not None for p in first)
    second = choose(problems, 20, frozenset(p.id for p in first))
    assert not {p.id for p in first} & {p.id for p in second}
    everything = frozenset(p.id for p in problems)
    assert choose(problems, 20, everything) == first
    assert len(choose(problems, 10_000)) == sum(p.answer is not None for p in problems)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 1.0])
def test_the_index_finds_exactly_what_comparing_all_with_all_finds(threshold: float) -> None:
    draw = random.Random(4)
    texts = [" ".join(draw.choices(WORDS[:6], k=draw.randrange(1, 12))) for _ in range(300)]
    index = NearIndex(threshold)
    for at, text in enumerate(texts):
        mine_, theirs = trigrams(text), [trigrams(other) for other in texts[:at]]
        slow = any(len(mine_ & other) / len(mine_ | other) >= threshold for other in theirs)
        assert index.near(text) is slow
        index.add(text)


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [
        ("请问怎样才能重置我的登录密码", "请问怎样才能重置我的登录密码呢", "我的订单什么时候发货"),
        (
            "パスワードを再設定する方法は何ですか",
            "パスワードを再設定する方法は何",
            "注文はいつ届く",
        ),
        ("ฉันจะรีเซ็ตรหัสผ่านได้อย่างไร", "ฉันจะรีเซ็ตรหัสผ่านได้อย่างไรครับ", "คำสั่งซื้ออยู่ที่ไหน"),
    ],
)
def test_texts_without_spaces_are_compared_too(one: str, other: str, far: str) -> None:
    index = NearIndex(0.7)
    index.add(one)
    assert index.near(other) and not index.near(far)
    index.add("Which ﬁle was lost?")
    assert index.near("ｗｈｉｃｈ file was LOST")


def test_a_text_without_words_is_near_nothing() -> None:
    index = NearIndex(0.7)
    index.add("")
    assert not index.near("") and not index.near("?!")


def test_the_side_does_not_depend_on_what_the_problem_says() -> None:
    one = Problem(environment="e", messages=(say("user", "a"),), user="u")
    other = Problem(environment="e", messages=(say("user", "b"),), user="u", conversation="c")
    assert side_of(one, SECTION) == side_of(other, SECTION)

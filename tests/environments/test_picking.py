"""Traffic becomes clusters and picks: the same in any order, and no side moves."""

import random
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from environments import mining
from environments.clusters import clustered
from environments.define import Environment
from environments.mining import Traffic, choose, sided
from environments.near import Frequencies, NearIndex
from environments.picking import PassRate, Picked, pick
from environments.tasksets.contract import Side
from flywheel.curate_section import ProblemsSection
from flywheel.records import Feedback, ModelCall, Problem, Span, Text, Trace, say

SECTION = ProblemsSection(heldout_share=0.4)
TOPICS = {
    "refund": "money back please the charge on my card was wrong twice this month",
    "delivery": "parcel late courier never came to the door and tracking shows nothing",
    "login": "password reset link does not work and the account stays locked",
}
LIMITS: dict[Side, int] = {"train": 12, "heldout": 8}


class Inbox(Environment):
    pass


def trace(k: int, text: str, **over: Any) -> Trace:
    call = ModelCall(input=(say("system", "Sort mail."), say("user", text)))
    span = Span(id="s", kind="model", start=over.pop("start", k + 1), call=call)
    fields = {"origin": "production", "user": f"u{k % 50}"} | over
    return Trace(
        id=f"t{k:05}", project="p", source="g", external_id=str(k), spans=(span,), **fields
    )


def said(k: int, value: Any) -> list[Feedback]:
    return [Feedback(project="p", target=f"t{k:05}", kind="demonstration", value=value, by=f"b{k}")]


def traffic(count: int) -> list[tuple[Trace, list[Feedback]]]:
    draw = random.Random(7)
    made = []
    for k in range(count):
        topic = draw.choices(list(TOPICS), weights=(6, 3, 1))[0]
        words = draw.sample(TOPICS[topic].split(), 8) + [f"n{draw.randrange(400)}" for _ in "abcd"]
        made.append((trace(k, f"{topic} {' '.join(words)}"), said(k, topic)))
    return made


def mined(traces: list[tuple[Trace, list[Feedback]]], **over: Any) -> list[Problem]:
    seen = Traffic(Inbox(), **over)
    for one, feedback in traces:
        seen.add(one, feedback)
    return sided(seen, SECTION)


def picked(problems: list[Problem], rates: dict[str, PassRate] | None = None) -> Picked:
    return pick(problems, rates or {}, LIMITS)


def test_the_same_traffic_in_any_order_gives_the_same_picks_and_more_moves_no_side() -> None:
    traces = traffic(300)
    first = picked(mined(traces))
    assert picked(mined(random.Random(1).sample(traces, 300))) == first
    fewer = {one.id: one.split for one in picked(mined(traces[:150])).problems}
    assert fewer.items() <= {one.id: one.split for one in first.problems}.items()
    chosen = Counter(one.split for one in first.problems if "pick" in one.attributes)
    assert chosen == LIMITS


def test_clusters_tell_topics_apart_and_picks_follow_their_traffic() -> None:
    problems = mined(traffic(300))
    found = picked(problems)
    topic = {one.id: one.answer for one in found.problems}
    by_cluster: dict[str, Counter[str]] = {}
    for one in found.problems:
        by_cluster.setdefault(one.attributes["cluster"], Counter())[topic[one.id]] += 1
    pure = sum(max(counts.values()) for counts in by_cluster.values())
    assert len(by_cluster) == len(found.clusters) > 2 and pure > 0.9 * len(problems)
    assert sum(one.share for one in found.clusters) == pytest.approx(1.0)
    assert [one.traffic for one in found.clusters] == sorted(
        (one.traffic for one in found.clusters), reverse=True
    )
    picks = Counter(topic[one.id] for one in found.problems if "pick" in one.attributes)
    assert picks["refund"] > picks["login"] > 0


def test_training_picks_what_is_half_mastered_and_evaluation_does_not_look() -> None:
    problems = mined(traffic(300))
    plain = picked(problems)
    ids = sorted(one.id for one in problems)
    rates = {id: PassRate((0.0, 0.5, 1.0)[at % 3], 4) for at, id in enumerate(ids)}
    hard = picked(problems, rates)

    def chosen(found: Picked, side: str) -> list[str]:
        ranked = [one for one in found.problems if "pick" in one.attributes and one.split == side]
        return [one.id for one in sorted(ranked, key=lambda one: one.attributes["pick"])]

    assert {rates[id].share for id in chosen(hard, "train")} == {0.5}
    assert chosen(hard, "heldout") == chosen(plain, "heldout")
    some = next(one for one in hard.problems if rates[one.id].share == 0.5)
    assert (some.attributes["difficulty"], some.attributes["tried"]) == (0.5, 4)
    assert all(one.attributes["difficulty"] is None for one in plain.problems)
    assert hard.clusters[0].pass_rate is not None and plain.clusters[0].pass_rate is None
    train = [one for one in hard.problems if one.split == "train"]
    assert [one.id for one in choose(train, 12)] == chosen(hard, "train")


def test_what_has_no_answer_or_is_nearly_there_is_not_picked() -> None:
    text = "please send my refund for the broken lamp to the new account"
    traces = [(trace(k, f"{text} {word}"), said(k, 1)) for k, word in enumerate(("now", "soon"))]
    traces += [(trace(9, "completely other words about a lost parcel"), [])]
    problems = mined([(replace(one, user="u"), feedback) for one, feedback in traces])
    assert len(problems) == 3
    found = pick(problems, {}, {"train": 9, "heldout": 9})
    assert sum("pick" in one.attributes for one in found.problems) == 1
    open_ = pick(problems, {}, {"train": 9, "heldout": 9}, needs_truth=False)
    assert sum("pick" in one.attributes for one in open_.problems) == 2


def test_bad_traffic_is_counted_and_left_out() -> None:
    seen = Traffic(Inbox())
    call = ModelCall(input=(say("system", "only rules"),))
    empty = Span(id="s", kind="model", start=1, call=call)
    seen.add(replace(trace(1, "x"), spans=(empty,)), ())
    seen.add(trace(2, "word " * 5000), ())
    seen.add(replace(trace(3, "x"), spans=()), ())
    seen.add(trace(4, "fine words", origin="rollout"), ())
    for k in range(5, 2005):
        seen.add(trace(k, "where is it"), said(k, "a" if k < 1000 else "b"))
    (one,) = seen.problems()
    assert one.attributes["traffic"] == 2000 and one.trace_id == "t00005"
    assert one.answer is None and "conflicting feedback: 2" in one.attributes["truth"]
    assert seen.left_out == {
        "no words of a user": 1, "longer than 20,000 characters": 1, "poses no problem": 1,
    }  # fmt: skip


def test_since_counts_less_and_moves_nothing() -> None:
    traces = traffic(100)
    late = mined(traces, since=61)
    assert {one.id: one.split for one in late} == {one.id: one.split for one in mined(traces)}
    assert sum(one.attributes["traffic"] for one in late) <= 40 < 100


def test_memory_is_bounded_by_hash_and_not_by_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mining, "MAX_PROBLEMS", 20)
    traces = traffic(100)
    first = {one.id for one in mined(traces)}
    assert first == {one.id for one in mined(traces[::-1])} and 10 < len(first) <= 20


def test_prompts_share_the_messages_that_they_have_in_common() -> None:
    problems = mined(traffic(50))
    assert len({id(one.messages[0]) for one in problems}) == 1
    parts = {id(one.messages[1]) for one in problems}
    assert len(parts) == 50 and all(isinstance(p.messages[1].parts[0], Text) for p in problems)


def test_few_or_wordless_texts_are_one_cluster() -> None:
    assert clustered([]) == ([], [])
    assert clustered(["a b c"] * 3) == ([0, 0, 0], ["everything"])
    assert set(clustered([f"{k} {k + 1}" for k in range(100)]).labels) == {0}


def test_the_index_finds_the_same_with_and_without_frequencies() -> None:
    draw = random.Random(3)
    words = ["dear", "team", "please", *(f"w{k}" for k in range(6))]
    texts = [" ".join(draw.choices(words, k=draw.randrange(1, 10))) for _ in range(200)]
    plain, rarest = NearIndex(0.6), NearIndex(0.6, Frequencies(texts))
    for text in texts:
        assert plain.find(text) == rarest.find(text)
        assert plain.add(text) == rarest.add(text)

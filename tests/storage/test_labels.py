"""What several reviewers' verdicts come to, how far they agree, and what is judged next."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flywheel.data_section import LabelsSection
from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.records import Feedback, Grade, Problem, say
from flywheel.reviews import GOLD, counting, label_of, labelled, settled
from storage import judgements, labels, queries, review_queue, reviews
from storage.committer import commit
from storage.database import reading
from storage.graded import SCORED
from storage.inbox import Inbox
from storage.known import known_of
from storage.labels import Vote
from tests.storage.store_parts import spoken

TWO = LabelsSection(reviewers=2)
BASE = Deployment(name="shop-v0", project="shop", version=0, base_model="/models/tiny-1b")


def ruled(target: str, verdict: str, by: str, at: int = 1, **more: Any) -> Feedback:
    return Feedback(project="shop", target=target, name="review", value=verdict == "accepted",
                    kind="boolean", by=by, at=at,
                    attributes={"verdict": verdict, "review": "t", **more})  # fmt: skip


def graded(target: str, good: bool, grader: str, at: int = 1) -> Grade:
    return Grade(trace_id=target, reward="review", value=float(good), kind="human", grader=grader,
                 confirmed_by="human", at=at)  # fmt: skip


def stored(home: Home, *records: Any) -> None:
    Inbox(home).append(records)
    commit(home)


@pytest.mark.parametrize(
    ("votes", "decided", "adjudicate", "state", "value"),
    [
        ((), None, True, "open", None),
        ((1.0,), None, True, "open", None),
        ((1.0, 1.0), None, True, "agreed", 1.0),
        ((1.0, 0.0), None, True, "disputed", None),
        ((1.0, 0.0), None, False, "disputed", 0.5),
        ((1.0, 0.0, 0.0), None, True, "agreed", 0.0),
        ((1.0, 1.0), 0.0, True, "settled", 0.0),
    ],
)
def test_a_label_is_open_agreed_disputed_or_settled(
    votes: tuple[float, ...], decided: float | None, adjudicate: bool, state: str, value: float
) -> None:
    found = label_of(votes, decided, reviewers=2, adjudicate=adjudicate)
    assert (found.state, found.value) == (state, value)


def test_grades_of_several_people_count_once_and_a_dispute_is_no_reward() -> None:
    code = Grade(trace_id="t", reward="exact", value=1.0)

    def made(*grades: Grade, reviewers: int = 2) -> list[Grade]:
        found = labelled([code, *grades], reviewers=reviewers, adjudicate=True)
        assert found[0] is code and len(found) == 2
        return found[1:]

    ann, bob = graded("t", True, "person:ann"), graded("t", False, "person:bob")
    (alone,) = made(ann)
    assert (alone.value, alone.weight, alone.confirmed_by) == (None, 0.0, None)
    (torn,) = made(ann, bob)
    assert (torn.value, torn.weight) == (None, 1.0) and "one more" in str(torn.reason)
    (most,) = made(ann, bob, graded("t", False, "person:cat"))
    assert (most.value, most.confirmed_by) == (0.0, "human")
    (last,) = made(ann, bob, graded("t", True, "settled:dan"))
    assert last.value == 1.0
    assert made(ann, reviewers=1)[0].value == 1.0


def test_who_settles_stands_instead_of_the_others() -> None:
    ann, bob = ruled("t", "accepted", "ann"), ruled("t", "rejected", "bob")
    dan = ruled("t", "corrected", "dan", at=2, settles=True)
    told = Feedback(project="shop", target="t", value=True, kind="boolean")
    assert settled([ann, bob, told]) == [ann, bob, told]
    assert settled([ann, dan, bob, told]) == [dan, told]


def test_a_store_tells_labels_reliability_and_agreement(home: Home) -> None:
    each = [spoken(f"e{n}", answer=str(n), start=n) for n in range(12)]
    truth = [n % 3 > 0 for n in range(12)]
    said: list[Any] = list(each)
    for n, one in enumerate(each):
        said.append(Feedback(project="shop", target=one.id, name=GOLD, value=truth[n],
                             kind="boolean", by="zoe", attributes={"review": "g"}))  # fmt: skip
        for by, good in (("ann", truth[n]), ("bob", truth[n] if n else not truth[n])):
            said.append(ruled(one.id, "accepted" if good else "rejected", by))
            said.append(graded(one.id, good, f"person:{by}"))
    stored(home, *said)
    found = labels.report(home, "shop", TWO)
    assert found.answers == {"open": 0, "agreed": 11, "disputed": 1, "settled": 0}
    ann, bob = found.reviewers
    assert (ann.accuracy, bob.gold_right, bob.gold_seen) == (1.0, 11, 12)
    assert ann.agrees == pytest.approx(11 / 12) and bob.low is not None and bob.low < 11 / 12
    assert found.alpha.alpha is not None and 0.7 < found.alpha.alpha < 1 and found.trusted
    disputed = judgements.grades(home, trace_ids=[each[0].id], labels=TWO)
    assert [one.value for one in disputed] == [None]
    stored(home, ruled(each[0].id, "rejected", "dan", at=5, settles=True),
           graded(each[0].id, False, "settled:dan", at=5))  # fmt: skip
    assert labels.report(home, "shop", TWO).answers["settled"] == 1
    assert [one.value for one in judgements.grades(home, trace_ids=[each[0].id], labels=TWO)] == [
        0.0
    ]
    (trace,) = next(iter(queries.traces(home, ids=[each[0].id])))
    told = judgements.feedback_for(home, [trace])[trace.id]
    assert {one.by for one in told if one.name == "review"} == {"dan"}


def test_alpha_is_what_krippendorff_computed_by_hand() -> None:
    """Krippendorff (2011), part A: nominal data of two observers, alpha = 0.095."""
    meg = (0, 1, 0, 0, 0, 0, 0, 0, 1, 0)
    owen = (1, 1, 1, 0, 0, 1, 0, 0, 0, 0)
    found = labels.agreement([
        Vote(trace_id=str(unit), by=by, good=bool(good), settles=False, at=0)
        for by, values in (("meg", meg), ("owen", owen)) for unit, good in enumerate(values)
    ])  # fmt: skip
    assert found.alpha == pytest.approx(0.095, abs=1e-3) and found.units == 10
    assert labels.agreement([]).alpha is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.booleans()), max_size=40))
def test_alpha_never_depends_on_the_order(drawn: list[tuple[int, str, bool]]) -> None:
    votes = {
        (unit, by): Vote(trace_id=str(unit), by=by, good=good, settles=False, at=0)
        for unit, by, good in drawn
    }
    each = list(votes.values())
    one = labels.agreement(each)
    assert one == labels.agreement(each[::-1])
    assert one.alpha is None or one.alpha <= 1.0


def test_more_reviewers_are_asked_until_there_is_a_label(home: Home) -> None:
    first, other = spoken("first", answer="1"), spoken("other", answer="2")
    stored(home, first, other, ruled(first.id, "accepted", "ann"))

    def left(me: str, section: LabelsSection) -> set[str]:
        return set(review_queue.queue(home, "shop", me=me, section=section))

    assert left("bob", LabelsSection()) == {other.id}
    assert left("bob", TWO) == {first.id, other.id} and left("ann", TWO) == {other.id}
    stored(home, ruled(first.id, "rejected", "bob"))
    assert first.id in left("cat", TWO)
    assert review_queue.queue(home, "shop", me="cat", which="disputed") == [first.id]
    stored(home, ruled(first.id, "rejected", "cat"))
    assert first.id not in left("dan", TWO)


def test_gold_items_come_unmarked_among_the_others_once(home: Home) -> None:
    each = [spoken(f"e{n}", answer=str(n), start=n) for n in range(40)]
    golden = each[:5]
    stored(home, *each,
           *(ruled(one.id, "accepted", "zoe") for one in golden),
           *(Feedback(project="shop", target=one.id, name=GOLD, value=True, kind="boolean",
                      attributes={"review": "g"}) for one in golden))  # fmt: skip
    section = LabelsSection(gold=0.3)
    found = review_queue.queue(home, "shop", me="ann", section=section)
    shown = [one for one in found if one in {gold.id for gold in golden}]
    assert 0 < len(shown) == len(set(shown)) and len(found) == 35 + len(shown)
    assert found == review_queue.queue(home, "shop", me="ann", section=section)
    stored(home, *(ruled(one, "accepted", "ann", at=9) for one in shown))
    again = review_queue.queue(home, "shop", me="ann", section=section)
    assert not set(shown) & set(again)


def test_value_is_disagreement_times_traffic_times_effect(home: Home) -> None:
    common = [spoken(f"c{n}", answer=str(n)) for n in range(4)]
    rare = spoken("rare", answer="r")
    posed = [
        Problem(environment="e", messages=(say("user", one.id),), trace_id=one.id, slice=slice)
        for one, slice in ((rare, "rare"), *((each, "common") for each in common))
    ]
    stored(home, *common, rare, *posed)
    found = review_queue.ranked(home, "shop", me="ann")
    by = {one.trace_id: one for one in found}
    assert found[-1].trace_id == rare.id and by[rare.id].traffic == 0.25
    for one in found:
        assert one.value == pytest.approx(one.disagreement * one.traffic * one.effect)


def test_reviews_count_where_their_label_does() -> None:
    def counted(*reviews: Feedback, adjudicate: bool = True) -> list[str | None]:
        found = counting(reviews, reviewers=2, adjudicate=adjudicate)
        return [one.by for one in found]

    ann, bob, cid = (ruled("t", "accepted", by) for by in ("ann", "bob", "cid"))
    no = ruled("t", "rejected", "dan", at=2)
    thumb = replace(ann, name="outcome", attributes={}, by="user")
    assert counted(ann, thumb) == ["user"]
    # One person is one, however the name is spelled; what was said last stands.
    assert counted(ann, replace(ann, by="Ann ")) == []
    assert counted(ann, bob) == ["ann", "bob"]
    assert counted(ann, no) == []
    assert counted(ann, no, adjudicate=False) == ["ann", "dan"]
    assert counted(ann, bob, cid, no) == ["ann", "bob", "cid"]


def test_one_person_under_two_spellings_is_one_reviewer(home: Home) -> None:
    one, two = graded("t", True, "person:ann"), graded("t", True, "person:Ann", at=2)
    (label,) = labelled([one, two], reviewers=2, adjudicate=True)
    assert (label.value, label.weight) == (None, 0.0)
    stored(home, ruled("t", "accepted", "ann"), ruled("t", "rejected", "Ann", at=2))
    assert [(one.by, one.good) for one in labels.votes(home, "shop")] == [("Ann", False)]


def test_all_that_count_words_count_the_same(home: Home) -> None:
    """One person under two spellings, a word on a copy, one taken back, two that settle."""
    twice, copied, back, torn = (spoken(name, answer=name) for name in ("w", "c", "b", "t"))
    copy = spoken("c", answer="c", source="import:x", origin="import")

    def review(target: str, verdict: str, by: str, at: int = 1, **more: Any) -> list[Any]:
        good = verdict == "accepted"
        grade = replace(graded(target, good, f"person:{by}", at), weight=float(verdict[0] != "w"))
        if more:
            grade = replace(grade, grader=f"settled:{by}")
        return [ruled(target, verdict, by, at, **more), grade]

    stored(
        home, twice, copied, copy, back, torn,
        *review(twice.id, "accepted", "ann"), *review(twice.id, "rejected", "Ann", 2),
        ruled(copied.id, "accepted", "ann"), ruled(copy.id, "rejected", "ann", 2),
        *review(back.id, "accepted", "ann"), *review(back.id, "withdrawn", "ANN", 2),
        *review(torn.id, "accepted", "sub:Ann"), *review(torn.id, "rejected", "sub:ann", 2),
        *review(torn.id, "accepted", "bob", 3, settles=True),
        *review(torn.id, "rejected", "cid", 4, settles=True),
        *review(torn.id, "accepted", "cid", 5),
    )  # fmt: skip
    each = {twice.id: 0.0, copied.id: 0.0, torn.id: 1.0}
    told = labels.labels(labels.votes(home, "shop"), LabelsSection())
    assert {one: label.value for one, label in told.items()} == each
    assert reviews.verdicts(home, "shop") == each
    assert len(labels.votes(home, "shop")) == 6
    known = known_of(home, project="shop", traffic="shop", environment="shop", champion=BASE,
                     sequence=1 << 40, rules=("agreement",)).reviews  # fmt: skip
    assert known == {twice.id: (1, 0.0), copied.id: (1, 0.0), torn.id: (4, 1.0)}
    found = next(iter(queries.traces(home, ids=[*each, back.id])))
    said = judgements.feedback_for(home, found, labels=LabelsSection())
    assert {one: {review.value for review in some} for one, some in said.items() if some} == {
        one: {value == 1.0} for one, value in each.items()
    }
    given = judgements.grades(home, trace_ids=[twice.id, torn.id], labels=LabelsSection())
    assert {one.trace_id: one.value for one in given} == {twice.id: 0.0, torn.id: 1.0}
    with reading(home) as database:
        assert database is not None
        rows = database.execute("SELECT trace_id, reward FROM cards WHERE trace_id <> $1",
                                [copy.id]).fetchall()  # fmt: skip
        scored = database.execute(f"SELECT * FROM ({SCORED})").fetchall()
    assert dict(rows) == {twice.id: 0.0, copied.id: None, back.id: None, torn.id: 1.0}
    assert dict(scored) == {twice.id: 0.0, torn.id: 1.0}

"""What comes next to be reviewed, how far it is, and how often reviewers agree."""

from typing import Any

from flywheel.home import Home
from flywheel.records import Feedback, Grade, Tokens
from storage import review_queue, reviews
from storage.committer import commit
from storage.inbox import Inbox
from tests.storage.store_parts import spoken


def ruled(target: str, verdict: str, by: str, at: int = 1) -> Feedback:
    return Feedback(project="shop", target=target, name="review", value=verdict == "accepted",
                    kind="boolean", by=by, at=at,
                    attributes={"verdict": verdict, "review": "t"})  # fmt: skip


def stored(home: Home, *records: Any) -> None:
    Inbox(home).append(records)
    commit(home)


def graded(trace_id: str, value: float | None, **fields: Any) -> Grade:
    return Grade(trace_id=trace_id, reward="r", value=value, **fields)


def test_an_empty_home_has_nothing_to_review(home: Home) -> None:
    assert review_queue.queue(home, "shop", me="ann") == [] == reviews.pairs(home, "shop", me="ann")
    assert reviews.progress(home, "shop", "ann").answers == 0


def test_what_helps_most_comes_first(home: Home) -> None:
    def sampled(name: str, logprob: float) -> Any:
        tokens = Tokens(prompt_ids=(1,), completion_ids=(2,), logprobs=(logprob,))
        return spoken(name, answer=name, tokens=tokens)

    good, sure, unsure, ungraded, low, torn = (
        sampled(name, logprob) for name, logprob in (
            ("good", -0.5), ("sure", -0.1), ("unsure", -2.0), ("ungraded", -0.2), ("low", -0.3),
            ("torn", -0.01),
        )
    )  # fmt: skip
    stored(
        home, good, sure, unsure, ungraded, low, torn,
        *(graded(one.id, 1.0) for one in (good, sure, unsure, torn)), graded(low.id, 0.0),
        Feedback(project="shop", target=torn.id, value=False, kind="boolean"),
        spoken("rollout", origin="rollout", answer="x"), spoken("else", project="else"),
    )  # fmt: skip
    found = review_queue.queue(home, "shop", me="ann")
    assert found == [one.id for one in (torn, ungraded, low, unsure, good, sure)]
    assert spoken("rollout").id in review_queue.queue(home, "shop", me="ann", recorded=False)
    stored(home, ruled(torn.id, "accepted", "ann"), ruled(low.id, "rejected", "bob"))
    assert review_queue.queue(home, "shop", me="ann")[0] == ungraded.id
    assert review_queue.queue(home, "shop", me="ann", which="second") == [low.id]
    assert torn.id not in review_queue.queue(home, "shop", me="ann", which="all")


def test_agreement_counts_verdicts_that_stand_and_not_the_reviewers_own_grade(home: Home) -> None:
    each = [spoken(f"e{n}", answer=str(n), start=n) for n in range(8)]
    records: list[Any] = [*each]
    for number, one in enumerate(each):
        records += [graded(one.id, float(number < 6)), ruled(one.id, "accepted", "ann")]
        records.append(Grade(trace_id=one.id, reward="review", value=1.0, kind="human"))
    records += [ruled(each[0].id, "rejected", "bob"), ruled(each[1].id, "accepted", "bob")]
    stored(home, *records)
    found = reviews.progress(home, "shop", "ann")
    assert (found.answers, found.reviewed, found.mine) == (8, 8, 8)
    assert (found.with_reward.share, found.with_reward.common) == (0.75, 8)
    assert (found.with_others.share, found.with_others.common) == (None, 2)
    back = ruled(each[0].id, "withdrawn", "ann", at=2)
    stored(home, back, ruled(each[7].id, "rejected", "ann", at=2))
    found = reviews.progress(home, "shop", "ann")
    assert (found.mine, found.with_reward.common) == (7, 7)
    assert found.with_reward.share == 6 / 7


def test_pairs_are_different_answers_to_one_prompt_or_problem_once(home: Home) -> None:
    stored(
        home, spoken("a", answer="one", start=1), spoken("b", answer="two", start=2),
        spoken("c", answer="two", start=3, user="x"), spoken("d", question="other", start=4),
        spoken("p", origin="rollout", problem_id="p1", answer="x", question="q"),
        spoken("q", origin="evaluation", problem_id="p1", answer="y", question="q"),
    )  # fmt: skip
    found = reviews.pairs(home, "shop", me="ann")
    assert {frozenset((one.first, one.second)) for one in found} == {
        frozenset((spoken("p").id, spoken("q").id)),
        frozenset((spoken("a").id, min(spoken("b").id, spoken("c").id))),
    }
    one = found[0]
    said = {"project": "shop", "kind": "category", "by": "ann"}
    stored(home, Feedback(target=one.second, name=f"compared:{one.first}", value="better", **said))
    assert one not in reviews.pairs(home, "shop", me="ann")
    assert one in reviews.pairs(home, "shop", me="bob")
    stored(home, Feedback(target=one.second, name=f"compared:{one.first}", value="withdrawn", at=9,
                          **said))  # fmt: skip
    assert one in reviews.pairs(home, "shop", me="ann")

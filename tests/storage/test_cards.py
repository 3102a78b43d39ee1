"""Cards are what the other tables say, whatever came in which order."""

import random
from typing import Any

import pytest

from flywheel.home import Home
from flywheel.records import Feedback, Grade, Span, Tokens
from storage import cards
from storage.committer import commit
from storage.database import reading, writing
from storage.inbox import Inbox
from storage.rows import named
from tests.storage.store_parts import everything, spoken

TOKENS = Tokens(prompt_ids=(1,), completion_ids=(2, 3), logprobs=(-1.0, -3.0))


def all_cards(home: Home) -> list[dict[str, Any]]:
    with reading(home) as database:
        assert database is not None
        rows = named(database, "SELECT * EXCLUDE (since, first_since) FROM cards", {})
    for row in rows:
        row["handles"] = sorted(row["handles"])
        row["reviewers"] = sorted(row["reviewers"])
    return sorted(rows, key=lambda row: row["trace_id"])


def card(home: Home, trace_id: str) -> dict[str, Any]:
    return next(one for one in all_cards(home) if one["trace_id"] == trace_id)


def said(target: str, of: str = "trace", **fields: Any) -> Feedback:
    fields = {"value": True, "kind": "boolean", "by": "crm", **fields}
    return Feedback(project="shop", target=target, target_kind=of, **fields)  # type: ignore[arg-type]


def various() -> list[Any]:
    a, b, c = spoken("a", tokens=TOKENS, conversation="k"), spoken("b", answer="no"), everything()
    copy = spoken("a", source="import:x", origin="import", conversation="k2")
    later = spoken("b", span="s2", start=9, answer="yes", question="and now")
    named_span = Span(
        id="s9", kind="model", start=3, call=later.spans[0].call,
        attributes={"gen_ai.response.id": "resp-9"},
    )  # fmt: skip
    d = spoken("d", spans=(named_span,))
    return [
        a, b, c, copy, later, d,
        Grade(trace_id=a.id, reward="r", value=1.0, at=1),
        Grade(trace_id=a.id, reward="r", value=0.0, at=2),
        Grade(trace_id=b.id, reward="r", value=None, reason="?"),
        Grade(trace_id=b.id, reward="m", value=1.0, weight=0.0),
        said("k", "conversation"), said("k2", "conversation", by="copy", value=False),
        said("b", name="thumb"), said("s1", "span", by="x"), said("resp-9", "span", name="x"),
        said(b.id, name="review", by="ann", value="v", kind="demonstration", at=1,
             attributes={"verdict": "accepted", "review": "t"}),
        said(b.id, name="review", by="ann", value=False, at=2,
             attributes={"verdict": "rejected", "review": "t2"}),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_any_order_and_grouping_gives_the_same_cards(home: Home, seed: int) -> None:
    dice, records = random.Random(seed), various()
    dice.shuffle(records)
    while records:
        some, records = records[: (n := dice.randint(1, 6))], records[n:]
        Inbox(home).append(some)
        commit(home)
    kept = all_cards(home)
    with writing(home, wait_s=1) as database:
        database.begin()
        database.execute("DELETE FROM cards")
        cards.refresh(database, 10**6)
        database.commit()
    assert all_cards(home) == kept
    a, b = spoken("a"), spoken("b")
    assert card(home, a.id) | {"reward": 0.0, "graded": 1, "logprob": -2.0} == card(home, a.id)
    # What was said of the copy counts for what it is a copy of; two calls named s1 are meant.
    assert (card(home, a.id)["said"], card(home, a.id)["liked"]) == (3, pytest.approx(2 / 3))
    assert card(home, b.id)["reward"] is None and card(home, b.id)["ungiven"] == 1
    assert (card(home, b.id)["verdict"], card(home, b.id)["reviewers"]) == (0.0, ["ann"])
    assert card(home, b.id)["calls"] == 2 and card(home, b.id)["output_tokens"] == 6
    assert card(home, spoken("d").id)["said"] == 1


def test_a_withdrawn_review_leaves_no_trace_on_the_card(home: Home) -> None:
    one = spoken("a")
    first = said(one.id, name="review", by="ann", value=False, at=1,
                 attributes={"verdict": "rejected", "review": "t"})  # fmt: skip
    Inbox(home).append([first, one])
    commit(home)
    assert card(home, one.id)["verdict"] == 0.0
    back = said(one.id, name="review", by="ann", value="withdrawn", kind="category", at=2,
                attributes={"verdict": "withdrawn", "review": "u"})  # fmt: skip
    Inbox(home).append([back])
    commit(home)
    assert card(home, one.id) | {"verdict": None, "reviewers": [], "said": 0} == card(home, one.id)


def test_tokens_of_which_one_call_is_not_known_are_unknown(home: Home) -> None:
    Inbox(home).append([everything(), spoken("z", answer="")])
    commit(home)
    assert card(home, everything().id)["output_tokens"] is None
    assert card(home, spoken("z").id)["output_tokens"] == 3


def test_a_store_of_before_gets_its_cards_with_the_next_commit(home: Home) -> None:
    Inbox(home).append(various())
    commit(home)
    kept = all_cards(home)
    with writing(home, wait_s=1) as database:  # as a store is that was written without them
        database.execute("DROP TABLE cards; ALTER TABLE messages DROP COLUMN key")
        database.execute("DROP TABLE calibrations; DELETE FROM migrations WHERE number > 1")
    Inbox(home).append([said("nobody", by="zoe")])
    commit(home)
    assert all_cards(home) == kept
    from storage.queries import traces

    (found,) = list(traces(home, ids=[everything().id]))
    assert [span.id for span in found[0].spans] == [span.id for span in everything().spans] or found

"""Requests logged one by one become conversations, the same whatever order they come in."""

import itertools
import random
from typing import Any

import msgspec
import pytest

from flywheel.home import Home
from flywheel.records import Choice, Message, ModelCall, Reasoning, Span, Text, Trace, say, trace_id
from storage.browse import detail
from storage.committer import commit
from storage.database import reading
from storage.inbox import Inbox
from storage.queries import traces
from storage.threads import _Pair, assigned
from storage.turns import LOOKED_AT


def asked(name: str, *texts: str, at: int, answer: str, **fields: Any) -> Trace:
    """`texts`: of user and assistant by turns, ending with the user's."""
    said = tuple(say("assistant" if n % 2 else "user", text) for n, text in enumerate(texts))
    heard = Message(role="assistant", parts=(Reasoning(text="…"), Text(text=answer)))
    call = ModelCall(input=said, choices=(Choice(message=heard, finish_reason="stop"),))
    span = Span(id=f"{name}-call", kind="model", start=at, end=at + 1, call=call)
    return Trace(
        id=trace_id("p", "import:log", name), project="p", source="import:log", external_id=name,
        origin="import", spans=(span,), **fields,
    )  # fmt: skip


LOG = [
    asked("a1", "hi", at=10, answer="hello"),
    asked("a2", "hi", "hello", "a joke", at=20, answer="knock knock"),
    asked("a3", "hi", "hello", "a joke", "knock knock", "who?", at=30, answer="me"),
    asked("a2'", "hi", "hello", "a poem", at=40, answer="roses"),  # a branch
    asked("b1", "hi", at=15, answer="hello"),  # the same beginning, another conversation
    asked("b2", "hi", "hello", "a song", at=25, answer="la"),
    asked("gap", "x", "y", "z", "w", "?", at=50, answer="!"),  # its x is there, its z is not
    asked("first", "x", at=45, answer="y"),
    asked("other", "hi", "hello", "a joke", at=60, answer="no", user="somebody"),
]
FOLLOWS = {"a2": "b1", "a3": "a2", "a2'": "b1", "b2": "a1", "gap": "first"}


def threads(home: Home) -> dict[str, tuple[str | None, str]]:
    names = {one.id: one.external_id for one in LOG}
    with reading(home) as database:
        assert database is not None
        rows = database.execute(
            'SELECT trace_id, follows, root FROM threads WHERE "until" IS NULL'
        ).fetchall()
    return {names[one]: (names.get(above), names[root]) for one, above, root in rows}


def taken_in(home: Home, groups: list[list[Trace]]) -> Home:
    for group in groups:
        Inbox(home).append(group)
        commit(home)
    return home


def test_what_goes_on_is_known_by_its_messages_with_branches_and_gaps(home: Home):
    found = threads(taken_in(home, [LOG]))
    assert {one: above for one, (above, _) in found.items() if above} == FOLLOWS
    assert found["a3"] == ("a2", "b1") and found["b1"] == (None, "b1")
    assert "other" not in found  # of another user
    (batch,) = traces(home, project="p")
    ids = {one.external_id: one.id for one in LOG}
    seen = {one.external_id: one.conversation for one in batch}
    assert seen["a3"] == seen["a2'"] == ids["b1"] and seen["other"] is None
    looked_at = detail(home, ids["b1"])
    assert looked_at is not None and looked_at.follows is None
    assert set(looked_at.followed_by) == {ids["a2"], ids["a2'"]}
    assert looked_at.trace.conversation == ids["b1"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_any_order_and_grouping_gives_the_same_threads(tmp_path: Any, seed: int):
    expected = threads(taken_in(Home(tmp_path / "once"), [LOG]))
    chance = random.Random(seed)
    shuffled = LOG + [chance.choice(LOG) for _ in range(3)]
    chance.shuffle(shuffled)
    cuts = sorted(chance.sample(range(1, len(shuffled)), 4))
    groups = [shuffled[a:b] for a, b in itertools.pairwise([0, *cuts, len(shuffled)])]
    assert threads(taken_in(Home(tmp_path / "parts"), groups)) == expected


def test_a_conversation_that_its_sender_named_is_not_mixed_with_others(home: Home):
    log = [
        asked("a1", "hi", at=1, answer="hello", conversation="a"),
        asked("b2", "hi", "hello", "more", at=2, answer="ok", conversation="b"),
        asked("a2", "hi", "hello", "more", at=3, answer="ok", conversation="a"),
    ]
    taken_in(home, [log])
    (batch,) = traces(home, project="p")
    assert {one.external_id: one.conversation for one in batch} == {"a1": "a", "b2": "b", "a2": "a"}
    with reading(home) as database:
        assert database is not None
        rows = database.execute("SELECT trace_id FROM threads WHERE follows IS NOT NULL").fetchall()
    assert rows == [(log[2].id,)]


def test_long_requests_are_known_by_the_latest_answers_that_they_repeat(home: Home):
    """Whoever asks, in whatever script, and whatever else than the call a trace holds."""
    said, log = ["0?"], list[Trace]()
    for turn in range(14):
        log.append(asked(f"t{turn}", *said, at=turn, answer=f"{turn}!", user="ann ☃ é"))
        said += [f"{turn}!", f"{turn + 1}?"]
    tool = Span(id="looked", kind="tool", start=9, end=10)
    log[9] = msgspec.structs.replace(log[9], spans=(*log[9].spans, tool))
    taken_in(home, [log])
    with reading(home) as database:
        assert database is not None
        rows = database.execute('SELECT trace_id, follows FROM threads WHERE "until" IS NULL')
        above = dict(rows.fetchall())
        turns = database.execute("SELECT count(*) FROM turns WHERE NOT own GROUP BY trace_id")
        assert max(one for (one,) in turns.fetchall()) == LOOKED_AT
    assert above == {log[0].id: None} | {new.id: old.id for old, new in itertools.pairwise(log)}


def test_as_of_a_snapshot_threads_are_those_that_were(home: Home):
    taken_in(home, [[LOG[1]], [LOG[0]]])
    ids = {one.external_id: one.id for one in LOG}
    for snapshot, conversation in ((1, None), (2, ids["a1"])):
        found = [one for batch in traces(home, ids=[ids["a2"]], snapshot=snapshot) for one in batch]
        assert found[0].conversation == conversation


def test_each_takes_what_is_free_and_a_third_is_a_branch():
    def pair(follower: str, at: int, given: str, given_at: int) -> _Pair:
        return _Pair(follower, at, 1, 7, 0, given, given_at, 0, True)

    given = [("p1", 1), ("p2", 2)]
    pairs = [pair(f, at, *one) for f, at in (("f1", 5), ("f2", 6), ("f3", 7)) for one in given]
    for order in itertools.islice(itertools.permutations(pairs), 40):
        assert assigned(order) == {"f1": "p2", "f2": "p1", "f3": "p2"}
    assert assigned([pair("early", 0, "late", 3)]) == {"early": "late"}  # clocks differ

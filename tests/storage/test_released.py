"""What a canary's arms earned: which units there are, and what is left out."""

from pathlib import Path

import msgspec

from flywheel.home import Home
from flywheel.records import Grade, Trace, trace_id
from storage.committer import commit
from storage.inbox import Inbox
from storage.queries import traces
from storage.released import Assigned, arms, mirrored
from tests.storage.store_parts import spoken


def drawn(
    name: str, deployment: str, probability: float, *, at: int = 100, user: str | None = None,
    conversation: str | None = None, project: str = "support", **attributes: object,
) -> Trace:  # fmt: skip
    made = spoken(
        name, span=name, start=at, project=project, user=user,
        conversation=conversation or name, answer=name,
    )  # fmt: skip
    (span,) = made.spans
    assert span.call
    call = msgspec.structs.replace(
        span.call, deployment=deployment, routing_probability=probability
    )
    span = msgspec.structs.replace(span, call=call, attributes=attributes)
    return msgspec.structs.replace(made, spans=(span,))


def graded(trace: Trace, value: float | None, at: int, **more: object) -> Grade:
    usual: dict[str, object] = {"trace_id": trace.id, "reward": "right", "value": value, "at": at}
    return Grade(**(usual | more))  # type: ignore[arg-type]


def found(home: Home) -> tuple[Assigned, ...]:
    return arms(home, "support", "support-v1", "support-v2", 50).assigned


def test_units_are_conversations_or_users_that_were_drawn_for(tmp_path: Path) -> None:
    home = Home(tmp_path)
    a = drawn("a", "support-v1", 0.9, conversation="named", at=70)
    b = drawn("b", "support-v2", 0.1, at=60)
    one, two = (drawn(f"c{at}", "support-v2", 0.1, user="ann", at=at) for at in (80, 90))
    late = drawn("e", "support-v1", 0.9)
    left_out = [
        drawn("before", "support-v1", 0.9, at=40),
        drawn("certain", "support-v1", 1.0),
        drawn("other", "support-v9", 0.1),
        drawn("mirrored", "support-v2", 0.1, shadow_of="x"),
    ]
    given = [graded(a, 1.0, 7), graded(b, 0.0, 5), graded(one, 0.5, 8), graded(two, 0.75, 6)]
    given += [graded(trace, 1.0, 1) for trace in left_out]
    Inbox(home).append([a, b, one, two, late, *left_out, *given])
    commit(home)
    first = found(home)
    assert [(each.unit, each.challenger, each.score) for each in first] == [
        (b.id, True, 0.0), ("conversation:named", False, 1.0), ("user:ann", True, 0.5),
    ]  # fmt: skip
    assert [round(each.probability, 9) for each in first] == [0.1, 0.1, 0.1]
    assert arms(home, "support", "support-v1", "support-v2", 50).ungraded == (1, 0)


def test_a_trace_is_known_once_each_of_its_rewards_is(tmp_path: Path) -> None:
    home, trace = Home(tmp_path), drawn("a", "support-v2", 0.2)
    parts = [
        graded(trace, 1.0, 5, weight=3.0),
        graded(trace, None, 5, reward="liked"),
        graded(trace, 0.5, 5, reward="metric", weight=0.0),
    ]
    Inbox(home).append([trace, *parts])
    commit(home)
    assert found(home) == ()
    Inbox(home).append([graded(trace, 0.0, 9, reward="liked")])
    commit(home)
    (one,) = found(home)
    assert one.score == 0.75


def test_an_empty_home_has_no_arms(tmp_path: Path) -> None:
    assert found(Home(tmp_path)) == ()


def test_what_was_drawn_against_another_champion_or_by_no_known_chance_is_left_out(
    tmp_path: Path,
) -> None:
    """The challenger's half of such draws alone would tell its own mean, told as a difference."""
    home = Home(tmp_path)
    now, before = ({one: 0.9, "support-v2": 0.1} for one in ("support-v1", "support-v0"))
    kept = drawn("a", "support-v2", 0.1, drawn={"chosen": "support-v2", "among": now})
    made = [
        kept,
        drawn("b", "support-v2", 0.1, drawn={"chosen": "support-v2", "among": before}),
        drawn("c", "support-v2", 0.0),
    ]
    Inbox(home).append([*made, *(graded(one, 1.0, 1) for one in made)])
    commit(home)
    assert [one.unit for one in found(home)] == [kept.id]


def test_a_shadow_that_answers_in_the_same_words_is_no_copy_but_a_pair(tmp_path: Path) -> None:
    home = Home(tmp_path)
    seen = drawn("a", "support-v1", 1.0, conversation="named")
    (call,) = seen.spans
    copy = msgspec.structs.replace(
        drawn("b", "support-v2", 1.0, at=101, shadow_of={"trace": seen.id, "span": call.id}),
        id=trace_id("support", "shadow", "b"), source="shadow", conversation=None,
    )  # fmt: skip
    assert call.call
    said = msgspec.structs.replace(call.call, deployment="support-v2")
    (span,) = copy.spans
    copy = msgspec.structs.replace(copy, spans=(msgspec.structs.replace(span, call=said),))
    Inbox(home).append([seen, copy, graded(seen, 1.0, 1), graded(copy, 1.0, 1)])
    commit(home)
    assert sum(map(len, traces(home, project="support"))) == 2, "neither is a copy"
    (pair,) = mirrored(home, "support", "support-v1", "support-v2")
    assert (pair.unit, pair.shadow, pair.served) == (seen.id, 1.0, 1.0)

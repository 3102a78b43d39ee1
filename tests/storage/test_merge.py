import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.records import Choice, ModelCall, Span, Trace, say
from storage.merge import copies, counted_once, judged, merge, missing_parents, roots
from tests.storage.store_parts import spoken

few = st.sampled_from


@st.composite
def span_of(draw: st.DrawFn) -> Span:
    call = None
    if draw(st.booleans()):
        call = ModelCall(input=(say("user", draw(few("xy"))),),
                         choices=(Choice(message=say("assistant", draw(few("pq")))),))  # fmt: skip
    parts = draw(few([{}, {}, {"end": 1}, {"start": 0, "call.choices": 1},
                      {"call.input": 0, "kind": 1}, {"call.input": 1, "parents": 0}]))  # fmt: skip
    return Span(
        id=draw(few("abcd")), kind=draw(few(["model", "tool"])), parts=parts,
        parents=tuple(draw(st.lists(few("abcz"), max_size=2))), start=draw(few([None, 1, 2])),
        version=draw(few([0, 0, 1])), call=call, attributes=draw(few([{}, {"k": 1}, {"k": "1"}])),
    )  # fmt: skip


part_of = st.builds(
    lambda spans, conversation, user, raw, attributes: Trace(
        id="t", project="p", source="s", external_id="e", origin="production", spans=tuple(spans),
        conversation=conversation, user=user, raw=raw, attributes=attributes,
    ),
    st.lists(span_of(), max_size=4),
    few([None, "c1", "c2"]), few([None, "", "u"]), few([None, "r1", "r2"]),
    st.dictionaries(few("mn"), few([None, 0, "0", [1], {"x": 1.5}]), max_size=2),
)  # fmt: skip


def folded(parts: list[Trace]) -> Trace:
    state: Trace | None = None
    for part in parts:
        state = merge(state, part)
    assert state is not None
    return state


def canonical(trace: Trace) -> bytes:
    return msgspec.json.encode(trace, order="deterministic")


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(part_of, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_order_grouping_and_repetition_gives_the_same_trace(
    parts: list[Trace], chance: random.Random
) -> None:
    expected = folded(parts)
    shuffled = parts + [chance.choice(parts) for _ in range(chance.randrange(4))]
    chance.shuffle(shuffled)
    assert canonical(folded(shuffled)) == canonical(expected)
    cut = chance.randrange(len(shuffled))
    groups = [folded(group) for group in (shuffled[:cut], shuffled[cut:]) if group]
    assert canonical(folded(groups)) == canonical(expected)
    split = [
        msgspec.structs.replace(part, spans=(span,))
        for part in shuffled
        for span in part.spans or (None,)
        if span is not None
    ]
    bare = [msgspec.structs.replace(part, spans=()) for part in shuffled]
    assert canonical(folded(bare + split)) == canonical(expected)


@settings(max_examples=100, deadline=None)
@given(st.lists(part_of, min_size=1, max_size=4))
def test_what_brings_nothing_new_leaves_the_very_same_trace(parts: list[Trace]) -> None:
    state = folded(parts)
    for part in [*parts, state]:
        assert merge(state, part) is state


def test_a_higher_version_of_a_span_wins_over_any_content() -> None:
    def at(version: int, name: str) -> Trace:
        return spoken(spans=(Span(id="a", kind="other", version=version, name=name),))

    for parts in ([at(2, "old"), at(1, "new")], [at(1, "new"), at(2, "old")]):
        assert folded(parts).spans[0].name == "old"


def test_known_wins_over_unknown_and_an_empty_text_is_known() -> None:
    for parts in ([spoken(user=None), spoken(user="")], [spoken(user=""), spoken(user=None)]):
        assert folded(parts).user == ""


def test_a_root_is_provisional_until_its_parent_comes() -> None:
    child = Span(id="child", kind="tool", parents=("parent",), start=2)
    parent = Span(id="parent", kind="agent", start=1)
    alone = judged(merge(None, spoken(spans=(child,))))
    assert missing_parents(alone) == ["parent"]
    assert [span.id for span in roots(alone)] == ["child"]
    assert any("incomplete" in reason for reason in alone.fidelity_reasons)
    whole = judged(merge(alone, spoken(spans=(parent,))))
    assert missing_parents(whole) == []
    assert [span.id for span in roots(whole)] == ["parent"]
    assert not any("incomplete" in reason for reason in whole.fidelity_reasons)


def test_a_turn_exported_again_under_new_span_ids_counts_once_and_its_children_move() -> None:
    call = spoken().spans[0]

    def exported(prefix: str) -> tuple[Span, ...]:
        agent = Span(id=prefix + "agent", kind="agent", name="turn", start=1)
        model = msgspec.structs.replace(call, id=prefix + "call", parents=(agent.id,))
        return agent, model

    late = Span(id="late", kind="tool", parents=("y-call",), start=9)
    trace = merge(None, spoken(spans=(*exported("y-"), *exported("x-"), late)))
    assert copies(trace) == {"y-agent": "x-agent", "y-call": "x-call"}
    seen = counted_once(trace, copies(trace))
    assert {span.id: span.parents for span in seen.spans} == {
        "x-agent": (),
        "x-call": ("x-agent",),
        "late": ("x-call",),
    }


def test_steps_that_merely_look_alike_stay_two() -> None:
    steps: Any = tuple(Span(id=one, kind="agent", name="step") for one in "ab")
    assert copies(merge(None, spoken(spans=steps))) == {}
    timed: Any = tuple(
        Span(id=one, kind="tool", name="poll", start=start) for one, start in (("a", 1), ("b", 2))
    )
    assert copies(merge(None, spoken(spans=timed))) == {}

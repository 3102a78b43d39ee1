import itertools

from flywheel.records import Choice, ModelCall, Span, Usage, say
from storage.fidelity import judge_call
from storage.merge import merge
from storage.span_parts import disputed, joined, part
from tests.storage.store_parts import spoken

ASKED = ModelCall(input=(say("user", "a"),), tools=(), model="m")
SAID = ModelCall(
    input=(),
    choices=(Choice(message=say("assistant", "b"), finish_reason="stop"),),
    usage=Usage(input_tokens=1, output_tokens=1),
)
BEGUN = part(
    Span(id="s", kind="model", name="chat", start=5, call=ASKED),
    "kind", "name", "start", "call.input", "call.tools", "call.model",
)  # fmt: skip
ENDED = part(
    Span(id="s", kind="other", end=9, call=SAID, attributes={"k": 1}),
    "end", "call.choices", "call.usage", version=2,
)  # fmt: skip


def test_the_parts_of_a_span_are_one_span_in_any_order_and_number():
    orders = itertools.permutations([BEGUN, ENDED, BEGUN, ENDED])
    found = []
    for order in orders:
        state = None
        for one in order:
            state = merge(state, spoken(spans=(one,)))
        assert state is not None
        found.append(state.spans)
    assert all(one == found[0] for one in found)
    (span,) = found[0]
    assert (span.kind, span.name, span.start, span.end, span.version) == ("model", "chat", 5, 9, 2)
    assert span.call is not None
    assert span.call.input == ASKED.input and span.call.choices == SAID.choices
    assert span.call.tools == () and span.call.usage == SAID.usage
    assert judge_call(span)[0] == "renderable"


def test_a_whole_span_stands_above_its_parts():
    whole = Span(id="s", kind="model", name="whole", start=1, call=SAID)
    for first, second in ((whole, ENDED), (ENDED, whole)):
        state = merge(merge(None, spoken(spans=(first,))), spoken(spans=(second,)))
        assert state.spans == (whole,)


def test_a_later_version_of_a_field_stands_and_two_at_one_version_are_disputed():
    def named(name: str, version: int) -> Span:
        return part(Span(id="s", kind="other", name=name), "name", version=version)

    for order in itertools.permutations([named("a", 1), named("b", 1), named("c", 2)]):
        span = joined(joined(order[0], order[1]), order[2])
        assert span.name == "c" and disputed(span) == []
    span = joined(joined(named("a", 1), named("b", 1)), named("a", 1))
    assert disputed(span) == ["name"]


def test_a_call_whose_parts_contradict_each_other_is_only_looked_at():
    other = part(
        Span(id="s", kind="model", call=ModelCall(input=(say("user", "x"),))), "call.input"
    )
    span = joined(joined(BEGUN, ENDED), other)
    level, reasons = judge_call(span)
    assert level == "view_only" and "its parts contradict each other in input" in reasons

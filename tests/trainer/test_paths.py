"""A trace's graph as samples: every sampled token once, ids that extend exactly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.errors import BadRecord
from flywheel.records import Choice, ModelCall, Sampling, Span, Tokens, Trace, say
from trainer.packing import pack
from trainer.paths import Paths, paths_of, sample_of


def span(
    number: int,
    prompt: tuple[int, ...],
    *answers: tuple[int, ...],
    parents: tuple[str, ...] = (),
    finish: str | None = "stop",
    logprobs: bool = True,
    error: str | None = None,
) -> Span:
    choices = tuple(
        Choice(
            message=say("assistant", "x"),
            finish_reason=finish,
            tokens=Tokens(
                prompt_ids=prompt,
                completion_ids=ids,
                logprobs=tuple(-float(token) for token in ids) if logprobs else None,
                policy_versions=("p-v1",),
                template_digest="t",
            ),
        )
        for ids in answers
    )
    call = ModelCall(input=(), choices=choices, sampling=Sampling(temperature=0.7, seed=number))
    return Span(
        id=f"call-{number:04d}", kind="model", start=number, parents=parents, call=call, error=error
    )


def trace(*spans: Span) -> Trace:
    return Trace(
        id="t", project="p", source="s", external_id="e", origin="rollout", spans=tuple(spans)
    )


def trained(found: Paths) -> list[tuple[str, int]]:
    """(span, token) of all that is masked."""
    return [
        (str(span_id), token)
        for path in found.paths
        for span_id, token, kept in zip(path.spans, path.token_ids, path.mask, strict=True)
        if kept
    ]


def test_turns_are_one_path_with_every_answer_trained() -> None:
    found = paths_of(
        trace(span(0, (1, 2), (3, 4)), span(1, (1, 2, 3, 4, 5), (6,)), span(2, (9,), (8,)))
    )
    path, alone = found.paths
    assert path.token_ids == (1, 2, 3, 4, 5, 6)
    assert path.mask == (False, False, True, True, False, True)
    assert path.behaviour_logprobs == (None, None, -3.0, -4.0, None, -6.0)
    assert path.policy_versions == (None, None, "p-v1", "p-v1", None, "p-v1")
    assert path.spans == (None, None, "call-0000", "call-0000", None, "call-0001")
    assert [tuple(segment)[:4] for segment in path.segments] == [
        ("call-0000", 0, 2, 4), ("call-0001", 0, 5, 6),
    ]  # fmt: skip
    assert path.sampling == Sampling(temperature=0.7) and path.template_digest == "t"
    assert alone.token_ids == (9, 8) and not found.left_out


def test_what_branches_share_is_trained_in_the_first_of_them_alone() -> None:
    found = paths_of(
        trace(
            span(0, (1,), (2, 3)),
            span(1, (1, 2, 3, 4), (5,)),
            span(2, (1, 2, 3, 7), (8,), (9,)),
        )
    )
    assert [path.token_ids for path in found.paths] == [
        (1, 2, 3, 4, 5), (1, 2, 3, 7, 8), (1, 2, 3, 7, 9),
    ]  # fmt: skip
    assert [sum(path.mask) for path in found.paths] == [3, 1, 1]
    assert [path.segments[0].trained for path in found.paths] == [True, False, False]
    assert all(path.spans[1] == "call-0000" for path in found.paths)
    # The shared beginning is also computed once.
    samples = [sample_of(path, row_id=f"t/{n}") for n, path in enumerate(found.paths)]
    (packed,) = pack(samples, 100)
    assert len(packed.token_ids) == 8 and len(packed.targets) == 5


def test_a_retokenised_history_is_a_path_of_its_own_whatever_its_parents_say() -> None:
    spans = span(0, (1,), (2, 3)), span(1, (1, 2, 33, 4), (5,), parents=("call-0000",))
    found = paths_of(trace(*spans))
    assert [path.token_ids for path in found.paths] == [(1, 2, 3), (1, 2, 33, 4, 5)]
    assert len(trained(found)) == 3


def test_of_equal_answers_the_named_parent_is_gone_on_from() -> None:
    twins = [span(number, (1,), (2,)) for number in range(3)]
    named = span(3, (1, 2, 4), (5,), parents=("call-0001",))
    unnamed = span(4, (1, 2, 6), (7,))
    found = paths_of(trace(*twins, named, unnamed))
    went_on = [path.segments[0].span_id for path in found.paths if len(path.segments) == 2]
    assert went_on == ["call-0001", "call-0002"]
    # What began later is nobody's beginning.
    early = paths_of(trace(span(0, (1, 2, 4), (5,)), span(1, (1,), (2,))))
    assert [len(path.segments) for path in early.paths] == [1, 1]


def test_what_is_in_no_path_is_named_with_its_reason() -> None:
    spans = (
        span(0, (1,), (2,), error="the client hung up"),
        span(1, (1,), (2,), finish=None),
        span(2, (1,)),
        span(3, (1,), ()),
        span(4, (5,), (6,), logprobs=False),
    )
    found = paths_of(trace(*spans))
    (path,) = found.paths
    assert path.behaviour_logprobs == (None, None)
    assert sample_of(path, row_id="r").behaviour_logprobs is None
    assert [found.left_out[f"call-000{number}"].split(":")[0] for number in range(4)] == [
        "the call failed", "the answer was cut", "it has no answer",
        "its prompt or its answer has no tokens",
    ]  # fmt: skip


def test_a_sample_says_which_loss_and_refuses_an_unknown_template() -> None:
    (path,) = paths_of(trace(span(0, (1, 2), (3,)))).paths
    sample = sample_of(path, weight=0.5, row_id="r")
    assert sample.weights == {"rl": (0.0, 0.0, 0.5)} and sample.behaviour_logprobs == (0.0, 0.0, -3)
    assert sample.sampling == Sampling(temperature=0.7)
    with pytest.raises(BadRecord, match="chat template"):
        sample_of(path._replace(template_digest=None), row_id="r")


@st.composite
def graphs(draw: st.DrawFn) -> list[Span]:
    """Calls that go on from any earlier answer, or from none; few ids, so that much coincides."""
    token = st.integers(0, 2)
    some = st.lists(token, min_size=1, max_size=3).map(tuple)
    spans: list[Span] = []
    ends: list[tuple[int, ...]] = [()]
    for number in range(draw(st.integers(1, 8))):
        start = draw(st.sampled_from(ends))
        prompt = start + draw(some)
        answers = draw(st.lists(some, min_size=1, max_size=3))
        spans.append(span(number, prompt, *answers))
        ends += [prompt + answer for answer in answers]
    return spans


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_every_sampled_token_is_trained_exactly_once(spans: list[Span]) -> None:
    found = paths_of(trace(*spans))
    sampled = sorted(
        (one.id, token)
        for one in spans
        for choice in (one.call.choices if one.call else ())
        for token in (choice.tokens.completion_ids if choice.tokens else ())
    )
    assert sorted(trained(found)) == sampled and not found.left_out
    answers = {(one.id, n): c.tokens for one in spans if one.call
               for n, c in enumerate(one.call.choices) if c.tokens}  # fmt: skip
    for path in found.paths:
        for segment in path.segments:
            tokens = answers[segment.span_id, segment.choice]
            assert path.token_ids[: segment.start] == tokens.prompt_ids
            assert path.token_ids[segment.start : segment.end] == tokens.completion_ids
        assert path.segments[-1].end == len(path.token_ids)

from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.errors import BadRecord, UsageError
from trainer.fitting import cost_of
from trainer.forward import trained_logprobs
from trainer.packing import Packed, pack
from trainer.samples import Sample


@pytest.fixture
def plain(model_of: Any) -> Any:
    """The same weights with transformers' own attention, not ours."""
    return model_of(attention="sdpa")


def alone(model: Any, sample: Sample) -> torch.Tensor:
    """The oracle: one plain causal forward, whole softmax."""
    ids = torch.tensor([sample.token_ids])
    logprobs = model(ids).logits[0].log_softmax(-1)
    return torch.stack([logprobs[at - 1, sample.token_ids[at]] for at in sample.targets])


def visible_from(packed: Packed) -> list[list[int]]:
    """What each laid out token sees, as the nodes say it."""
    starts = [0, *accumulate(node.size for node in packed.nodes)]
    spans = [list(range(start, stop)) for start, stop in pairwise(starts)]
    return [
        [*(index for above in node.ancestors for index in spans[above]), *spans[own][: at + 1]]
        for own, node in enumerate(packed.nodes)
        for at in range(node.size)
    ]


def by_row(model: Any, samples: list[Sample], micro_tokens: int) -> dict[str, list[float]]:
    found: dict[str, dict[int, float]] = {}
    for packed in pack(samples, micro_tokens):
        logprobs = trained_logprobs(model, packed).tolist()
        for value, owner, at in zip(logprobs, packed.owners, packed.places, strict=True):
            found.setdefault(packed.samples[owner].row_id, {})[at] = value
    return {name: [values[at] for at in sorted(values)] for name, values in found.items()}


@pytest.mark.parametrize("micro_tokens", [40, 64, 10_000])
def test_packed_samples_have_the_logprobs_they_have_alone(
    model: Any, plain: Any, samples: list[Sample], micro_tokens: int
) -> None:
    found = by_row(model, samples, micro_tokens)
    assert found.keys() == {sample.row_id for sample in samples}
    for sample in samples:
        torch.testing.assert_close(
            torch.tensor(found[sample.row_id], dtype=torch.float64),
            alone(plain, sample).detach(),
            rtol=0,
            atol=1e-6,
        )


def test_a_shared_prefix_is_laid_out_once(samples: list[Sample]) -> None:
    (packed,) = pack(samples, 10_000)
    assert packed.token_ids[:20] == samples[0].token_ids[:20]
    own = sum(len(sample.token_ids) - 20 for sample in samples)
    assert len(packed.token_ids) <= 20 + own
    assert packed.sample_tokens == 8 * 20 + own
    assert cost_of(samples).tokens == len(packed.token_ids)
    assert packed.positions[packed.sources[0]] + 1 == packed.places[0]


def test_editing_one_sample_leaves_the_others_as_they_were(
    model: Any, samples: list[Sample], sample_of: Any
) -> None:
    ids = list(samples[3].token_ids)
    ids[22] = (ids[22] + 1) % 97
    ids[2] = (ids[2] + 1) % 97
    cut = samples[3].targets[0]
    edited = [*samples[:3], sample_of("row-3", ids[:cut], ids[cut:]), *samples[4:]]
    before = by_row(model, samples, 10_000)
    after = by_row(model, edited, 10_000)
    for name in before.keys() - {"row-3"}:
        assert after[name] == pytest.approx(before[name], abs=1e-7)
    assert after["row-3"] != pytest.approx(before["row-3"], abs=1e-6)


def test_packing_does_not_depend_on_the_order_given(samples: list[Sample]) -> None:
    assert pack(samples, 64) == pack(samples[::-1], 64)


def test_the_budget_counts_what_is_really_laid_out(samples: list[Sample]) -> None:
    batches = pack(samples, 64)
    assert len(batches) > 1
    assert all(len(packed.token_ids) <= 64 for packed in batches)
    assert sorted(s.row_id for packed in batches for s in packed.samples) == sorted(
        s.row_id for s in samples
    )


def test_equal_samples_and_prefixes_of_others_are_all_trained(model: Any, sample_of: Any) -> None:
    short = sample_of("short", [1, 2, 3], [4])
    long = sample_of("long", [1, 2, 3], [4, 5])
    twin = sample_of("twin", [1, 2, 3], [4, 5])
    (packed,) = pack([long, twin, short], 64)
    assert packed.token_ids == (1, 2, 3, 4, 5)
    assert len(packed.targets) == 5
    found = by_row(model, [long, twin, short], 64)
    assert found["long"] == found["twin"]
    assert found["short"] == found["long"][:1]


def test_a_row_over_the_budget_is_named(sample_of: Any) -> None:
    with pytest.raises(UsageError, match=r"row big has 40 tokens.*micro_tokens = 32"):
        pack([sample_of("big", list(range(30)), list(range(10)))], 32)


def test_pairs_stay_together(sample_of: Any) -> None:
    pairs = [
        sample_of(f"{pair}-{side}", [40 * side + pair] * 10, [1, 2], pair_id=str(pair))
        for pair in range(6)
        for side in range(2)
    ]
    for packed in pack(pairs, 30):
        assert len(packed.token_ids) <= 30
        sides: dict[str | None, int] = {}
        for each in packed.samples:
            sides[each.pair_id] = sides.get(each.pair_id, 0) + 1
        assert set(sides.values()) == {2}


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=8), min_size=1, max_size=9),
    st.integers(8, 40),
)
@settings(max_examples=150, deadline=None)
def test_each_token_sees_its_own_sample_and_nothing_else(
    sequences: list[list[int]], budget: int
) -> None:
    samples = [
        Sample(
            row_id=str(index),
            token_ids=tuple(ids),
            mask=(False,) + (True,) * (len(ids) - 1),
            weights={"ce": (1.0,) * len(ids)},
            template_digest="t",
        )
        for index, ids in enumerate(sequences)
    ]
    trained = 0
    for packed in pack(samples, budget):
        assert len(packed.token_ids) <= budget
        seen = visible_from(packed)
        trained += len(packed.targets)
        for source, target, owner, at in zip(
            packed.sources, packed.targets, packed.owners, packed.places, strict=True
        ):
            visible = seen[source]
            own = packed.samples[owner].token_ids
            assert tuple(packed.token_ids[index] for index in visible) == own[:at]
            assert [packed.positions[index] for index in visible] == list(range(at))
            assert target == own[at]
    assert trained == sum(len(ids) - 1 for ids in sequences)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mask": (False, True)}, "mask has 2 entries for 3 tokens"),
        ({"mask": (True, True, True)}, "first token"),
        ({"mask": (False, False, False)}, "no token is trained"),
        ({"weights": {"ce": (1.0,)}}, r"weights\.ce has 1"),
        ({"weights": {"ce": (1.0, 0.0, 0.0)}}, "weighs anything"),
        ({"weights": {"ce": (1.0, 1.0, -1.0)}}, "negative"),
        ({"behaviour_logprobs": (0.0, float("nan"), 0.0)}, "not finite"),
        ({"advantages": (0.0,)}, "advantages has 1"),
        ({"token_ids": (1, 2, -3)}, "negative"),
    ],
)
def test_a_sample_whose_parts_do_not_fit_cannot_be_made(
    change: dict[str, Any], reason: str
) -> None:
    whole: dict[str, Any] = {
        "row_id": "r",
        "token_ids": (1, 2, 3),
        "mask": (False, True, True),
        "weights": {"ce": (0.0, 1.0, 1.0)},
        "template_digest": "t",
    }
    Sample(**whole)
    with pytest.raises(BadRecord, match=reason):
        Sample(**{**whole, **change})

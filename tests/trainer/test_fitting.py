import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.errors import UsageError
from trainer.fitting import Unit, cost_of, fit, plan, units_of
from trainer.packing import pack, pack_stream
from trainer.samples import Sample

sequences = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=8), min_size=1, max_size=12)


def made(name: str, ids: list[int], pair_id: str | None = None) -> Sample:
    return Sample(
        row_id=name,
        token_ids=tuple(ids),
        mask=(False,) + (True,) * (len(ids) - 1),
        weights={"ce": (1.0,) * len(ids)},
        template_digest="t",
        pair_id=pair_id,
    )


def heavy_tailed(number: int, budget: int, seed: int = 0) -> list[Sample]:
    """Lengths as agents' rollouts have them; no two share a prefix."""
    draw = random.Random(seed)
    lengths = [max(2, min(budget, int(draw.lognormvariate(4.5, 0.9)))) for _ in range(number)]
    return [made(f"r{at}", [at, *range(size - 1)]) for at, size in enumerate(lengths)]


def names(samples: list[Sample]) -> Counter[str]:
    return Counter(sample.row_id for sample in samples)


@given(sequences)
@settings(max_examples=60, deadline=None)
def test_cost_counts_each_prefix_once_and_what_its_tokens_see(given: list[list[int]]) -> None:
    samples = [made(str(at), ids) for at, ids in enumerate(given)]
    trie = {tuple(ids[:depth]) for ids in given for depth in range(1, len(ids) + 1)}
    cost = cost_of(samples, width=10)
    assert cost.tokens == len(trie)
    assert cost.flops == pytest.approx(sum(1 + len(path) / 60 for path in trie))


@given(sequences, st.integers(8, 30), st.integers(1, 5), st.booleans())
@settings(max_examples=80, deadline=None)
def test_every_sample_is_in_one_micro_batch_and_all_ranks_have_equally_many(
    given: list[list[int]], budget: int, ranks: int, pairs: bool
) -> None:
    samples = [
        made(str(at), ids, str(at // 2) if pairs and budget >= 16 else None)
        for at, ids in enumerate(given)
    ]
    groups = plan(samples, budget, ranks)
    assert len(groups) % ranks == 0
    assert names([each for group in groups for each in group]) == names(samples)
    assert all(cost_of(group).tokens <= budget for group in groups)
    homes = {each.pair_id: at for at, group in enumerate(groups) for each in group if each.pair_id}
    assert all(
        homes[each.pair_id] == at
        for at, group in enumerate(groups)
        for each in group
        if each.pair_id
    )
    assert plan(samples[::-1], budget, ranks) == groups


@given(st.lists(st.integers(2, 20), min_size=1, max_size=40), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_nothing_waits_for_more_micro_batches_than_the_window_has_places(
    lengths: list[int], window: int
) -> None:
    arrived = 0

    def arriving() -> Any:
        nonlocal arrived
        for at, size in enumerate(lengths):
            arrived += 1
            yield (made(str(at), [at, *range(size - 1)]),)

    seen_at: dict[str, int] = {}
    known = 0
    for number, group in enumerate(fit(arriving(), 20, window=window)):
        seen_at |= {str(at): number for at in range(known, arrived)}
        known = arrived
        for unit in group:
            assert number - seen_at.pop(unit[0].row_id) < window
        assert len(seen_at) < window
    assert not seen_at


def test_a_stream_of_heavy_tailed_rollouts_wastes_under_three_percent() -> None:
    budget = 1024
    samples = heavy_tailed(600, budget)
    packs = list(pack_stream(samples, budget))
    whole = packs[:-10]
    assert names([one for packed in packs for one in packed.samples]) == names(samples)
    assert 1 - sum(len(one.token_ids) for one in whole) / (budget * len(whole)) < 0.03


def test_pairs_that_stream_stay_together() -> None:
    samples = [made(f"{at}", [at, 1, 2], pair_id=str(at // 2)) for at in range(12)]
    for packed in pack_stream(samples, 8, window=2):
        assert set(Counter(one.pair_id for one in packed.samples).values()) == {2}


def test_ranks_compute_nearly_the_same_at_the_same_time() -> None:
    budget, ranks = 1024, 4
    groups = plan(heavy_tailed(200, budget), budget, ranks, width=64)
    costs = [cost_of(group, 64).flops for group in groups]
    rounds = [costs[at : at + ranks] for at in range(0, len(costs), ranks)]
    idle = 1 - sum(costs) / sum(ranks * max(one) for one in rounds)
    assert idle < 0.05
    mine = [sum(costs[rank::ranks]) for rank in range(ranks)]
    assert max(mine) / min(mine) < 1.05


def test_ranks_without_samples_compute_empty_micro_batches() -> None:
    packs = pack([made("a", [1, 2]), made("b", [3, 4])], 64, ranks=4)
    assert sorted(len(packed.samples) for packed in packs) == [0, 0, 1, 1]
    assert [packed.targets for packed in packs if not packed.samples] == [(), ()]


def test_what_shares_a_prefix_goes_together_before_what_fits_better() -> None:
    group = [made(f"g{at}", [*range(10), 50 + at, 60 + at]) for at in range(3)]
    other = made("o", [90, *range(19)])
    found = list(fit([(group[0],), (other,), (group[1],), (group[2],)], 32))
    assert [[unit[0].row_id for unit in one] for one in found] == [["g0", "g1", "g2"], ["o"]]


def test_units_are_pairs_and_single_samples_in_the_order_of_their_tokens() -> None:
    samples = [made("b", [2, 1]), made("p", [1, 9], "x"), made("q", [3, 9], "x"), made("a", [1, 1])]
    units: list[Unit] = units_of(samples)
    assert [[one.row_id for one in unit] for unit in units] == [["a"], ["p", "q"], ["b"]]


def test_a_stream_names_the_row_that_is_too_long() -> None:
    with pytest.raises(UsageError, match=r"row big has 40 tokens.*micro_tokens = 32"):
        list(pack_stream([made("small", [1, 2]), made("big", list(range(40)))], 32))

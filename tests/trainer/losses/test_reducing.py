"""The reducer: units counted over the whole step, whatever stands in which micro-batch."""

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from flywheel.errors import BadRecord
from flywheel.train_section import TrainSection
from trainer.losses import COMPONENTS, count_units, needs, reduce, settled
from trainer.packing import Packed, pack
from trainer.samples import Sample

RECIPES: list[tuple[str, dict[str, Any]]] = [
    ("ce", {}),
    *(("rl", {"rl": {"loss": loss}}) for loss in ("dppo", "grpo", "dr_grpo", "gspo", "cispo")),
    ("rl", {"rl": {"loss": "dapo", "correction": "sequence_mask", "old_logprobs": "recomputed"}}),
    ("ref_kl", {}),
    ("distill", {}),
    ("dpo", {}),
    ("kto", {}),
]


def drawn(count: int = 8, **weights: float) -> list[Sample]:
    """Samples with every stream, in pairs of a chosen and a rejected one."""
    draw = random.Random(3)
    prompt = tuple(draw.randrange(97) for _ in range(6))
    made = []
    for index in range(count):
        size = 6 + draw.randint(2, 7)

        def numbers(size: int = size) -> tuple[float, ...]:
            return tuple(-draw.random() * 2 for _ in range(size))

        made.append(
            Sample(
                row_id=f"row-{index}",
                token_ids=prompt + tuple(draw.randrange(97) for _ in range(size - 6)),
                mask=(False,) * 6 + (True,) * (size - 6),
                weights={name: (weight,) * size for name, weight in weights.items()},
                template_digest="t",
                pair_id=f"pair-{index // 2}",
                advantages=((1.0 if index % 2 else -1.0) * draw.choice([0.5, 1.0]),) * size,
                behaviour_logprobs=numbers(),
                proximal_logprobs=numbers(),
                reference_logprobs=numbers(),
                teacher_logprobs=numbers(),
            )
        )
    return made


def scored(packed: Packed, slopes: dict[tuple[str, int], torch.Tensor]) -> torch.Tensor:
    """[m] logprobs that depend on the sample and the place alone."""
    keys = [
        (packed.samples[owner].row_id, at)
        for owner, at in zip(packed.owners, packed.places, strict=True)
    ]
    for row, at in keys:
        value = -random.Random(f"{row}:{at}").random()
        slopes[row, at] = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    return torch.stack([slopes[key] for key in keys])


def step(
    samples: list[Sample], settings: TrainSection, micro_tokens: int
) -> tuple[float, dict[tuple[str, int], float], dict[str, float | None], int]:
    """Loss, gradients, what was told, and in how many micro-batches."""
    counts = count_units(samples, settings)
    slopes: dict[tuple[str, int], torch.Tensor] = {}
    loss, stats = 0.0, dict[str, float]()
    packs = pack(samples, micro_tokens)
    for packed in packs:
        logprobs = scored(packed, slopes)
        reduced = reduce(packed, logprobs, counts, settings, entropies=-logprobs)
        reduced.loss.backward()  # type: ignore[no-untyped-call]
        loss += float(reduced.loss.detach())
        for name, value in reduced.stats.items():
            stats[name] = stats.get(name, 0.0) + float(value)
    grads = {key: 0.0 if leaf.grad is None else float(leaf.grad) for key, leaf in slopes.items()}
    return loss, grads, settled(stats), len(packs)


@pytest.mark.parametrize(("name", "train"), RECIPES)
def test_how_a_step_is_cut_changes_no_loss(name: str, train: dict[str, Any]) -> None:
    settings = TrainSection.model_validate(train)
    samples = drawn(**{name: 1.0})
    if name == "kto":
        mate = drawn(1, kto=1.0)[0]
        samples.append(
            msgspec.structs.replace(
                mate, row_id="mate", pair_id=None, advantages=(0.0,) * len(mate.mask)
            )
        )
    whole = step(samples, settings, 1000)
    cut = step(samples, settings, 20)
    assert whole[3] == 1 < cut[3]
    assert cut[0] == pytest.approx(whole[0], rel=1e-12)
    assert cut[1] == pytest.approx(whole[1], rel=1e-12)
    assert set(cut[2]) == set(whole[2])
    assert f"{name}/entropy" in whole[2]
    for key, value in whole[2].items():
        assert cut[2][key] == (None if value is None else pytest.approx(value)), key


def test_each_component_has_units_of_its_own() -> None:
    samples = drawn(4, ce=0.1, rl=1.0, dpo=1.0)
    tokens = sum(len(sample.targets) for sample in samples)
    grpo = TrainSection.model_validate({"rl": {"loss": "grpo"}})
    assert count_units(samples, grpo) == {
        "ce": tokens, "rl": 4, "rl/tokens": tokens, "dpo": 2, "dpo/tokens": tokens,
    }  # fmt: skip
    assert count_units(samples, TrainSection())["rl"] == tokens
    (packed,) = pack(samples, 1000)
    logprobs = torch.full((tokens,), -1.0, dtype=torch.float64)
    counts = count_units(samples, grpo)
    reduced = reduce(packed, logprobs, counts, grpo)
    assert set(reduced.shares) == {"ce", "rl", "dpo"}
    assert float(reduced.shares["ce"]) == pytest.approx(0.1), "Echo's own denominator"
    assert float(reduced.loss) == pytest.approx(sum(map(float, reduced.shares.values())))


def test_a_micro_batch_in_which_nothing_weighs_still_has_a_backward_pass() -> None:
    samples = drawn(2, rl=1.0)
    (packed,) = pack(samples, 1000)
    empty = without_targets(packed)
    logprobs = torch.zeros(0, requires_grad=True)
    reduced = reduce(empty, logprobs * 1, count_units(samples, TrainSection()), TrainSection())
    reduced.loss.backward()  # type: ignore[no-untyped-call]
    assert (float(reduced.loss.detach()), reduced.shares, reduced.stats) == (0.0, {}, {})


def without_targets(packed: Packed) -> Packed:
    return replace(packed, sources=(), targets=(), owners=(), places=())


def test_what_a_loss_needs_is_known_beforehand_and_refused_by_row() -> None:
    (sample, *_) = drawn(1, rl=1.0, ref_kl=0.1)
    bare = msgspec.structs.replace(
        sample, behaviour_logprobs=None, proximal_logprobs=None, reference_logprobs=None
    )
    recomputed = TrainSection.model_validate(
        {"rl": {"old_logprobs": "recomputed", "correction": "tis"}}
    )
    assert needs(sample, recomputed) == frozenset()
    assert needs(bare, TrainSection()) == {"behaviour_logprobs", "reference_logprobs"}
    assert needs(bare, recomputed) == {
        "behaviour_logprobs", "proximal_logprobs", "reference_logprobs",
    }  # fmt: skip
    (packed,) = pack([bare], 1000)
    counts = count_units([bare], TrainSection())
    with pytest.raises(BadRecord, match=r"row-0: has no behaviour_logprobs, .*'rl' needs"):
        reduce(packed, torch.zeros(len(bare.targets)), counts, TrainSection())


def test_half_a_pair_is_refused() -> None:
    chosen, rejected = sorted(drawn(2, dpo=1.0), key=lambda one: -(one.advantages or (0,))[-1])
    assert count_units([chosen, rejected], TrainSection())["dpo"] == 1
    with pytest.raises(BadRecord, match="pair-0 has only a chosen answer"):
        count_units([chosen], TrainSection())
    with pytest.raises(BadRecord, match="belongs to no pair"):
        count_units([msgspec.structs.replace(chosen, pair_id=None)], TrainSection())


def test_a_mate_counts_as_no_answer_and_needs_its_logprobs() -> None:
    good, mate = drawn(2, kto=1.0)
    still = msgspec.structs.replace(mate, advantages=(0.0,) * len(mate.mask))
    counts = count_units([good, still], TrainSection())
    assert (counts["kto"], counts["kto/mates"]) == (1, 1)
    assert mate.proximal_logprobs and mate.reference_logprobs
    assert counts["kto/mates_gap"] == pytest.approx(
        sum(mate.proximal_logprobs[6:]) - sum(mate.reference_logprobs[6:])
    )
    unscored = msgspec.structs.replace(still, proximal_logprobs=None)
    assert needs(unscored, TrainSection()) == {"proximal_logprobs"}
    with pytest.raises(BadRecord, match="before its step is counted"):
        count_units([good, unscored], TrainSection())


def test_every_component_is_made_of_the_settings() -> None:
    for name, make in COMPONENTS.items():
        assert make(TrainSection()).per in ("token", "sequence", "pair"), name

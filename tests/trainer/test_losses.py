import math
from typing import Any

import pytest
import torch

from flywheel.train_section import TrainSection
from trainer.forward import CHUNK, head_scores, recompute_layers, trained_logprobs
from trainer.losses import COMPONENTS, count_units, reduce
from trainer.losses.streams import Streams
from trainer.packing import Packed, pack
from trainer.samples import Sample

SETTINGS = TrainSection()


def gradients(model: Any, batches: list[Packed], counts: dict[str, int]) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=True)
    for packed in batches:
        torch.stack(
            list(reduce(packed, trained_logprobs(model, packed), counts, SETTINGS).shares.values())
        ).sum().backward()
    return [each.grad.clone() for each in model.parameters() if each.requires_grad]


def singly(samples: list[Sample]) -> list[Packed]:
    """Every sample its own micro-batch: nothing packed, nothing shared."""
    return [packed for sample in samples for packed in pack([sample], 10_000)]


def test_cross_entropy_is_what_a_hand_computes() -> None:
    streams = Streams(
        logprobs=torch.tensor([math.log(0.5), math.log(0.25)], dtype=torch.float64),
        weights=torch.tensor([1.0, 0.5], dtype=torch.float64),
        owners=torch.tensor([0, 0]),
    )
    assert float(COMPONENTS["ce"](SETTINGS).term(streams, SETTINGS).total) == pytest.approx(
        math.log(2) + 0.5 * math.log(4)
    )


def test_the_total_is_the_float64_oracle(model: Any, model_of: Any, samples: list[Sample]) -> None:
    plain = model_of(attention="sdpa")
    total, weighed = 0.0, 0
    for sample in samples:
        logits = plain(torch.tensor([sample.token_ids])).logits[0].double().tolist()
        for at in sample.targets:
            row = logits[at - 1]
            top = max(row)
            normal = top + math.log(math.fsum(math.exp(value - top) for value in row))
            total += sample.weights["ce"][at] * (normal - row[sample.token_ids[at]])
            weighed += 1
    counts = count_units(samples, SETTINGS)
    assert counts == {"ce": weighed}
    loss = sum(
        float(
            reduce(packed, trained_logprobs(model, packed), counts, SETTINGS).shares["ce"].detach()
        )
        for packed in pack(samples, 64)
    )
    assert loss == pytest.approx(total / weighed, rel=1e-6)


@pytest.mark.parametrize("micro_tokens", [40, 90, 10_000])
def test_gradients_do_not_depend_on_packing_or_micro_batches(
    model: Any, samples: list[Sample], micro_tokens: int
) -> None:
    counts = count_units(samples, SETTINGS)
    plain = gradients(model, singly(samples), counts)
    packed = gradients(model, pack(samples, micro_tokens), counts)
    scale = max(float(each.abs().max()) for each in plain)
    assert scale > 1e-3
    for one, other in zip(plain, packed, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * scale)


def test_shared_prefixes_give_the_same_gradients_in_float32(
    model_of: Any, samples: list[Sample]
) -> None:
    model = model_of(torch.float32)
    counts = count_units(samples, SETTINGS)
    plain = gradients(model, singly(samples), counts)
    shared = gradients(model, pack(samples, 10_000), counts)
    scale = max(float(each.abs().max()) for each in plain)
    for one, other in zip(plain, shared, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * scale)


def test_a_weight_of_zero_counts_neither_above_nor_below(sample_of: Any) -> None:
    sample = Sample(
        row_id="r",
        token_ids=(1, 2, 3, 4),
        mask=(False, True, True, True),
        weights={"ce": (9.0, 1.0, 0.0, 1.0)},
        template_digest="t",
    )
    assert count_units([sample], SETTINGS) == {"ce": 2}
    (packed,) = pack([sample], 64)
    logprobs = torch.tensor([-1.0, -100.0, -3.0], dtype=torch.float64)
    assert float(reduce(packed, logprobs, {"ce": 2}, SETTINGS).shares["ce"]) == 2.0


def test_a_loss_that_is_not_in_the_table_is_an_error(samples: list[Sample]) -> None:
    sample = Sample(
        row_id="r",
        token_ids=(1, 2),
        mask=(False, True),
        weights={"unheard_of": (0.0, 1.0)},
        template_digest="t",
    )
    (packed,) = pack([sample], 64)
    with pytest.raises(KeyError, match="unheard_of"):
        reduce(packed, torch.zeros(1), count_units([sample], SETTINGS), SETTINGS)


def test_a_frozen_head_gives_what_a_learning_one_gives() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50, bias=False, dtype=torch.float64)
    hidden = torch.randn(CHUNK + 9, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 50, (CHUNK + 9,))
    above = torch.randn(CHUNK + 9, dtype=torch.float64)
    results = []
    for learns in (True, False):
        head.requires_grad_(learns)
        logprobs = head_scores(head, hidden, targets).logprobs
        (slope,) = torch.autograd.grad(logprobs, hidden, above)
        results.append((logprobs.detach(), slope))
    truth = head(hidden).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    for logprobs, slope in results:
        torch.testing.assert_close(logprobs, truth.detach())
        torch.testing.assert_close(
            slope, torch.autograd.grad(truth, hidden, above, retain_graph=True)[0]
        )


def test_recomputing_layers_changes_no_bit(model_of: Any, samples: list[Sample]) -> None:
    model = model_of(torch.float32)
    counts = count_units(samples, SETTINGS)
    batches = pack(samples, 10_000)
    assert recompute_layers(model, 1, 1 << 40) == 0
    kept = gradients(model, batches, counts)
    assert recompute_layers(model, len(batches[0].token_ids), 1) == 3
    recomputed = gradients(model, batches, counts)
    for one, other in zip(kept, recomputed, strict=True):
        assert torch.equal(one, other)

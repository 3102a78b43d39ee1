import math
from typing import Any

import pytest
import torch

from flywheel.records import Sampling
from trainer.forward import CHUNK, head_scores, score, trained_logprobs
from trainer.packing import lay_out, pack
from trainer.samples import Sample


def head_of(learns: bool) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50, bias=False, dtype=torch.float64).requires_grad_(learns)
    hidden = torch.randn(CHUNK + 9, 8, dtype=torch.float64, requires_grad=True)
    return head, hidden, torch.randint(0, 50, (CHUNK + 9,))


@pytest.mark.parametrize("learns", [True, False])
def test_temperature_and_entropy_are_what_the_whole_softmax_gives(learns: bool) -> None:
    head, hidden, targets = head_of(learns)
    temperatures = torch.linspace(0.5, 2, len(targets), dtype=torch.float64)
    found = head_scores(head, hidden, targets, temperatures, entropies=True)
    logprobs = (head(hidden) / temperatures[:, None]).log_softmax(-1)
    picked = logprobs.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(found.logprobs, picked)
    torch.testing.assert_close(found.entropies, -(logprobs.exp() * logprobs).sum(1).detach())
    above = torch.randn(len(targets), dtype=torch.float64)
    wanted = [hidden, head.weight] if learns else [hidden]
    for one, other in zip(
        torch.autograd.grad(found.logprobs, wanted, above),
        torch.autograd.grad(picked, wanted, above),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_the_gradient_through_a_frozen_head_is_the_numeric_one() -> None:
    head, hidden, targets = head_of(learns=False)
    heat = torch.full((5,), 0.7, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda given: head_scores(head, given, targets[:5], heat).logprobs,
        hidden[:5].detach().requires_grad_(),
    )


def test_a_distribution_without_doubt_has_entropy_zero() -> None:
    head = torch.nn.Linear(1, 3, bias=False, dtype=torch.float64).requires_grad_(False)
    head.weight.copy_(torch.tensor([[0.0], [2000.0], [0.0]]))
    found = head_scores(head, torch.ones(1, 1).double(), torch.tensor([1]), entropies=True)
    assert found.entropies is not None
    assert (float(found.entropies), float(found.logprobs)) == (0.0, 0.0)


def test_what_was_sampled_is_scored_at_its_temperature_and_the_rest_at_one(model: Any) -> None:
    ids, prompt = (3, 14, 15, 92, 65, 35), 3
    sample = Sample(
        row_id="r",
        token_ids=ids,
        mask=(False,) + (True,) * 5,
        weights={
            "ce": tuple(float(at < prompt) for at in range(6)),
            "rl": tuple(float(at >= prompt) for at in range(6)),
        },
        template_digest="t",
        sampling=Sampling(temperature=0.6),
    )
    (packed,) = pack([sample], 64)
    assert packed.temperatures == (1.0, 1.0, 0.6, 0.6, 0.6)
    logits = model(torch.tensor([ids])).logits[0, :-1]
    heat = torch.tensor(packed.temperatures, dtype=torch.float64)[:, None]
    truth = (logits / heat).log_softmax(-1).detach()
    found = score(model, packed, entropies=True)
    assert found.entropies is not None
    torch.testing.assert_close(
        found.logprobs, truth.gather(1, torch.tensor(ids[1:])[:, None])[:, 0], atol=1e-6, rtol=0
    )
    assert math.isclose(
        float(found.entropies[-1]), -float((truth[-1].exp() * truth[-1]).sum()), abs_tol=1e-6
    )


def test_a_micro_batch_without_samples_runs_and_moves_nothing(model: Any) -> None:
    logprobs = trained_logprobs(model, lay_out([]))
    assert logprobs.shape == (0,)
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    learning = [each for each in model.parameters() if each.requires_grad]
    assert all(each.grad is not None and not each.grad.any() for each in learning)


def test_shared_prefixes_are_computed_in_bfloat16_too(model_of: Any, samples: list[Sample]) -> None:
    model = model_of(torch.float32)
    (packed,) = pack(samples, 10_000)
    exact = trained_logprobs(model, packed)
    with torch.autocast("cpu", torch.bfloat16):
        found = trained_logprobs(model, packed)
    assert found.dtype == torch.float32
    found.sum().backward()  # type: ignore[no-untyped-call]
    found, exact = found.detach(), exact.detach()
    # The random model's weights are large; bfloat16 keeps eight bits.
    assert float((found - exact).abs().mean()) < 0.05 * float(exact.abs().mean())

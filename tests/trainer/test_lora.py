from typing import Any

import torch

from trainer.forward import trained_logprobs
from trainer.lora import fuse_adapter
from trainer.models import use_adapter
from trainer.packing import pack
from trainer.samples import Sample


def logprobs_and_gradients(model: Any, samples: list[Sample]) -> list[torch.Tensor]:
    (packed,) = pack(samples, 10_000)
    model.zero_grad(set_to_none=True)
    logprobs = trained_logprobs(model, packed)
    (-logprobs).mean().backward()
    gradients = [each.grad for each in model.parameters() if each.requires_grad]
    return [logprobs.detach(), *gradients]


def test_fused_layers_give_pefts_numbers(model_of: Any, samples: list[Sample]) -> None:
    plain, fused = model_of(), model_of()
    assert fuse_adapter(fused, "candidate") == 3 * 7
    expected = logprobs_and_gradients(plain, samples)
    scale = max(float(each.abs().max()) for each in expected[1:])
    for one, other in zip(expected, logprobs_and_gradients(fused, samples), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * max(1.0, scale))


def test_without_its_adapter_a_fused_model_is_the_base(model_of: Any) -> None:
    plain, fused = model_of(), model_of()
    fuse_adapter(fused, "candidate")
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    for model in (plain, fused):
        use_adapter(model, None)
    assert torch.equal(plain(ids).logits, fused(ids).logits)

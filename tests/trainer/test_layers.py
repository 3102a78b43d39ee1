from typing import Any

import pytest
import torch

from trainer.forward import trained_logprobs
from trainer.layers import fuse_layers, normed, rotated
from trainer.packing import pack
from trainer.samples import Sample


def logprobs_and_gradients(model: Any, samples: list[Sample]) -> list[torch.Tensor]:
    (packed,) = pack(samples, 10_000)
    model.zero_grad(set_to_none=True)
    logprobs = trained_logprobs(model, packed)
    (logprobs * torch.linspace(0, 1, len(logprobs))).sum().backward()  # type: ignore[no-untyped-call]
    learning = [each.grad for each in model.parameters() if each.requires_grad]
    return [logprobs.detach(), *(each for each in learning if each is not None)]


@pytest.mark.parametrize("everything", [False, True])
def test_fused_layers_give_the_same_logprobs_and_gradients(
    model_of: Any, samples: list[Sample], everything: bool
) -> None:
    model = model_of(torch.float32)
    if everything:
        model.requires_grad_(True)
    plain = logprobs_and_gradients(model, samples)
    assert fuse_layers(model) == 7
    assert fuse_layers(model) == 7
    for one, other in zip(plain, logprobs_and_gradients(model, samples), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * float(one.abs().max()))


def test_gradients_of_norm_and_rotation_are_the_numeric_ones() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 8).double(), torch.randn(8).double()
    q, cos, sin = torch.randn(2, 3, 8).double(), torch.randn(3, 8).double(), torch.randn(3, 8)
    for one in (x, weight, q):
        one.requires_grad_()
    assert torch.autograd.gradcheck(lambda one, other: normed(one, other, 1e-6), (x, weight))
    assert torch.autograd.gradcheck(lambda one: rotated(one, cos, sin.double()), q)


def test_a_norm_of_another_formula_keeps_its_own(model_of: Any) -> None:
    class OtherRMSNorm(torch.nn.Module):
        variance_epsilon = 1e-6

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return (1 + self.weight) * hidden * hidden.pow(2).mean(-1, keepdim=True).rsqrt()

    assert fuse_layers(torch.nn.Sequential(OtherRMSNorm())) == 0
    assert fuse_layers(model_of(torch.float64)) == 0

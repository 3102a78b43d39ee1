"""A small random Llama with grouped key-value heads, an adapter that learns, and samples."""

import random
from typing import Any

import pytest
import torch

from trainer.models import add_adapter
from trainer.samples import Sample


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


def small_model(dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).to(dtype)
    model.requires_grad_(False)
    for index, parameter in enumerate(
        add_adapter(model, "candidate", rank=4, alpha=8, seed=seed, trainable=True)
    ):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.to(dtype).train()


@pytest.fixture
def model() -> Any:
    """In float64, but for the norms, which transformers computes in float32."""
    return small_model()


def make_sample(
    name: str, prompt: list[int], answer: list[int], weight: float = 1.0, **more: Any
) -> Sample:
    mask = [False] * len(prompt) + [True] * len(answer)
    return Sample(
        row_id=name,
        token_ids=(*prompt, *answer),
        mask=tuple(mask),
        weights={"ce": tuple(weight if wanted else 0.0 for wanted in mask)},
        template_digest="t",
        **more,
    )


def random_samples(count: int, *, shared: int, seed: int = 0) -> list[Sample]:
    """`count` samples that share their first `shared` tokens; lengths differ."""
    draw = random.Random(seed)
    prefix = [draw.randrange(97) for _ in range(shared)]
    return [
        make_sample(
            f"row-{index}",
            prefix + [draw.randrange(97) for _ in range(draw.randint(1, 9))],
            [draw.randrange(97) for _ in range(draw.randint(1, 7))],
            weight=draw.choice([1.0, 0.5]),
        )
        for index in range(count)
    ]


@pytest.fixture
def samples() -> list[Sample]:
    return random_samples(8, shared=20)


@pytest.fixture
def sampled_from() -> Any:
    return random_samples


@pytest.fixture
def sample_of() -> Any:
    return make_sample


@pytest.fixture
def model_of() -> Any:
    return small_model

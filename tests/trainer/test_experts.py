import base64
import io
from typing import Any

import numpy as np
import pytest
import torch

from flywheel.errors import UsageError
from flywheel.experts import experts_of, joined
from flywheel.records import UNKNOWN_EXPERT, Experts
from trainer.attention import attend
from trainer.forward import trained_logprobs
from trainer.models import use_attention
from trainer.packing import pack
from trainer.samples import Sample

LAYERS, TOP, COUNT = 2, 2, 6


def mixture(kind: str) -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": 97, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": LAYERS,
        "num_attention_heads": 2, "num_key_value_heads": 1, "num_experts_per_tok": TOP,
        "initializer_range": 0.3, "head_dim": 16,
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "mixtral":
        model: Any = MixtralForCausalLM(MixtralConfig(**shape, num_local_experts=COUNT))
    else:
        shape |= {"num_experts": COUNT, "moe_intermediate_size": 16, "norm_topk_prob": False}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape))
    use_attention(model, "flywheel_tree", attend)
    return model


def routers(model: Any) -> list[Any]:
    return [each for each in model.modules() if type(each).__name__.endswith("TopKRouter")]


def routed(model: Any, sample: Sample) -> np.ndarray:
    """[tokens, layers, top_k]: where the model itself sends the sample's tokens."""
    taken: list[torch.Tensor] = []
    hooks = [
        each.register_forward_hook(lambda _, __, out: taken.append(out[2]))
        for each in routers(model)
    ]
    logprobs(model, sample)
    for hook in hooks:
        hook.remove()
    return torch.stack(taken, dim=1).numpy()


def logprobs(model: Any, *samples: Sample) -> torch.Tensor:
    (packed,) = pack(samples, 512)
    return trained_logprobs(model, packed)


def sample_of(ids: list[int], experts: np.ndarray | None = None, name: str = "r") -> Sample:
    kept = None
    if experts is not None:
        kept = Experts(layers=LAYERS, top_k=TOP, data=experts.astype("<u2").tobytes())
    return Sample(
        row_id=name,
        token_ids=tuple(ids),
        mask=(False, *[True] * (len(ids) - 1)),
        weights={"ce": (1.0,) * len(ids)},
        template_digest="t",
        experts=kept,
    )


IDS = [5, 17, 33, 2, 41, 8]


@pytest.mark.parametrize("kind", ["mixtral", "qwen"])
def test_the_models_own_routes_replayed_change_nothing(kind: str) -> None:
    model = mixture(kind)
    plain = logprobs(model, sample_of(IDS))
    own = routed(model, sample_of(IDS))
    torch.testing.assert_close(logprobs(model, sample_of(IDS, own)), plain)
    unknown = np.full_like(own, UNKNOWN_EXPERT)
    torch.testing.assert_close(logprobs(model, sample_of(IDS, unknown)), plain)


def test_recorded_routes_are_taken_though_the_router_has_moved() -> None:
    model = mixture("mixtral")
    own = routed(model, sample_of(IDS))
    with torch.no_grad():
        for router in routers(model):
            router.weight.add_(torch.randn(router.weight.shape) * 0.3)
    assert (routed(model, sample_of(IDS)) != own).any()
    assert (routed(model, sample_of(IDS, own)) == own).all()
    moved = logprobs(model, sample_of(IDS))
    replayed = logprobs(model, sample_of(IDS, own))
    assert not torch.allclose(moved, replayed)
    replayed.sum().backward()  # type: ignore[no-untyped-call]
    assert all(float(router.weight.grad.abs().sum()) > 0 for router in routers(model))


def test_packed_samples_keep_their_own_routes() -> None:
    model = mixture("mixtral")
    draw = np.random.default_rng(0)

    def routes(count: int) -> np.ndarray:
        return np.stack([[draw.permutation(COUNT)[:TOP] for _ in range(LAYERS)]
                         for _ in range(count)])  # fmt: skip

    shared = routes(3)
    one = sample_of([5, 17, 33, 2, 41], np.concatenate([shared, routes(2)]), "one")
    other = sample_of([5, 17, 33, 9], np.concatenate([shared, routes(1)]), "other")
    free = sample_of([70, 3, 4], name="free")
    alone = torch.cat([logprobs(model, each) for each in (one, other, free)])
    torch.testing.assert_close(logprobs(model, free, other, one), alone, rtol=0, atol=1e-5)


def test_routes_of_another_model_are_refused() -> None:
    kept = Experts(layers=3, top_k=1, data=bytes(2 * 3 * len(IDS)))
    sample = Sample(
        row_id="r", token_ids=tuple(IDS), mask=(False, *[True] * 5), template_digest="t",
        weights={"ce": (1.0,) * 6}, experts=kept,
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"3 layers, 1 each.*2 layers"):
        logprobs(mixture("mixtral"), sample)


def test_what_an_engine_sends_is_kept_with_the_tokens() -> None:
    def sent(array: np.ndarray) -> str:
        with io.BytesIO() as file:
            np.save(file, array)
            return base64.b64encode(file.getvalue()).decode()

    array = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2)
    kept = experts_of(sent(array), 4)
    assert kept is not None and (kept.layers, kept.top_k) == (2, 2)
    found = np.frombuffer(kept.data, dtype="<u2").reshape(4, 2, 2)
    assert (found[:3] == array).all() and (found[3] == UNKNOWN_EXPERT).all()
    whole = joined([(kept, 0, 2), (None, 2, 3), (kept, 3, 4)])
    assert whole is not None
    assert whole.data == kept.data[:16] + b"\xff" * 8 + kept.data[24:]
    for wrong in ("?", sent(array[0]), sent(array.astype(float)), None):
        assert experts_of(wrong, 4) is None
    assert experts_of(sent(array), 2) is None

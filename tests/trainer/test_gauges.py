from typing import Any

import torch

from trainer.gauges import gauge, step_flops
from trainer.packing import pack
from trainer.samples import Sample


def test_flops_are_those_of_a_hand_count(model: Any, sample_of: Any) -> None:
    (packed,) = pack([sample_of("a", [1, 2, 3], [4, 5])], 64)
    width, inner, vocabulary, layers, rank = 48, 64, 97, 3, 4
    keys = width // 2
    shapes = [
        (width, width), (width, keys), (width, keys), (width, width),
        (width, inner), (width, inner), (inner, width),
    ]  # fmt: skip
    frozen = layers * sum(a * b for a, b in shapes)
    adapter = layers * sum(rank * (a + b) for a, b in shapes)
    seen = 1 + 2 + 3 + 4 + 5
    assert step_flops(model, [packed]) == (
        5 * (4 * (frozen + adapter) + 2 * adapter)
        + 2 * 4 * vocabulary * width
        + layers * 12 * width * seen
    )


def test_a_shared_prefix_is_computed_once(model: Any, samples: list[Sample]) -> None:
    together = step_flops(model, pack(samples, 10_000))
    alone = step_flops(model, [packed for one in samples for packed in pack([one], 10_000)])
    assert together < 0.6 * alone


def test_what_is_gauged(model: Any, samples: list[Sample]) -> None:
    told = gauge(model, pack(samples, 10_000), 0.5, compute=torch.float32)
    assert told["flops_share"] and told["flops_share"] > 0
    assert told["memory_mib"] and told["memory_mib"] > 50
    assert gauge(model, [], 0.0)["flops_share"] is None, "nothing was measured"

"""What a step made of the machine: its share of the FLOPs that there are, and its memory.

Enters a step's micro-batches and how long it took; leaves numbers for its metrics. FLOPs are those
that the step needs, not those that it spent: what is recomputed to save memory counts once.
"""

import functools
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from trainer.packing import Packed

_TRIES = 3


def gauge(
    model: Any, packs: "Sequence[Packed]", seconds: float, *, compute: "torch.dtype | None" = None
) -> dict[str, float | None]:
    """
    Args:
        packs: what this process computed.
        compute: number format of the matrix products; None = the parameters'.
    """
    first = next(model.parameters())
    peak = peak_flops(first.device, compute or first.dtype)
    done = step_flops(model, packs)
    return {
        "flops_share": done / seconds / peak if seconds > 0 else None,
        "flops_per_second": done / seconds if seconds > 0 else None,
        "memory_mib": memory_mib(first.device),
    }


def step_flops(model: Any, packs: "Iterable[Packed]") -> float:
    """Two for each weight and token forwards, two more for the slope by what came in, two more
    for the slope by the weight where it learns; of attention 4 w a token and token seen, twice
    that backwards. The output head is computed at trained positions.

    Kaplan et al. 2020, "Scaling Laws for Neural Language Models", table 1 and section 2.1.
    """
    from trainer.forward import text_of

    config: Any = model.config.get_text_config()
    body, body_learns = _weights(text_of(model).layers.named_parameters(), config)
    head = model.lm_head.weight
    head_size, head_learns = head.numel(), head.numel() if head.requires_grad else 0
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 12 * len(text_of(model).layers) * config.num_attention_heads * dim
    total = 0.0
    for packed in packs:
        tokens, trained = len(packed.token_ids), len(packed.targets)
        total += tokens * (4 * body + 2 * body_learns)
        total += trained * (4 * head_size + 2 * head_learns)
        total += attention * sum(depth + 1 for depth in packed.positions)
    return total


def _weights(named: "Iterable[tuple[str, torch.nn.Parameter]]", config: Any) -> tuple[float, float]:
    """How many weights multiply each token, and how many of them learn. Of a mixture's experts,
    which stand stacked in one tensor, each token meets `num_experts_per_tok`."""
    total = learns = 0.0
    for _, parameter in named:
        if parameter.ndim < 2:
            continue
        size = float(parameter.numel())
        if parameter.ndim == 3:
            size *= getattr(config, "num_experts_per_tok", 1) / parameter.shape[0]
        total += size
        learns += size if parameter.requires_grad else 0.0
    return total, learns


def peak_flops(device: "torch.device", dtype: "torch.dtype") -> float:
    """FLOPs a second of one large matrix product here, the best of a few; measured once."""
    import torch

    return _peak(str(device), dtype, torch.get_num_threads())


@functools.cache
def _peak(device: str, dtype: "torch.dtype", threads: int) -> float:
    import torch

    gpu = device.startswith("cuda")
    size = 8192 if gpu else 768
    ones = torch.ones(size, size, dtype=dtype, device=device)
    best = float("inf")
    with torch.no_grad():
        for _ in range(_TRIES + 1):  # the first warms up
            started = time.perf_counter()
            ones @ ones
            if gpu:
                torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def memory_mib(device: "torch.device") -> float:
    """The most that was in use so far: of the GPU's memory, or of this process."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**20 if sys.platform == "darwin" else 2**10)

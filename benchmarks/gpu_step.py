"""One optimizer step on a GPU: seconds and share of the peak FLOPs, in bfloat16, of a random model
of 0.5B parameters in the shape of Qwen2.5's, by adapter and with all weights; and how many places
packing left empty. On a CPU it runs a tiny shape, so that the script itself is tried everywhere.

    python benchmarks/gpu_step.py [--shape half|tiny] [--methods lora full] [--micro 8192 16384]
                                  [--rows 128] [--steps 6] [--json]

The first two steps warm up; the median of the others counts. FLOPs are those that the step needs
(`trainer.gauges.step_flops`), over the peak of a large product measured in the same run. Under ten
minutes on one GPU; nothing is downloaded.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "half": {
        "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip
TOKENIZER = Path(__file__).resolve().parents[1] / "tests" / "sorting" / "base"


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape",
        choices=SHAPES,
        default=None,
        help="the random model's: half = 0.5B parameters, tiny; default: half on a GPU, else tiny",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["lora", "full"],
        help="what learns: lora, full; default: %(default)s",
    )
    parser.add_argument(
        "--micro",
        type=int,
        nargs="+",
        default=None,
        help="micro-batch sizes in tokens; default: 8192 16384 on a GPU, else 512",
    )
    parser.add_argument(
        "--rows", type=int, default=None, help="rows a step; default: 128 on a GPU, else 8"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=6,
        help="optimizer steps, the two that warm up among them; default: %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    given = parser.parse_args()
    gpu = torch.cuda.is_available()
    shape = given.shape or ("half" if gpu else "tiny")
    micro = given.micro or ([8192, 16384] if gpu else [512])
    rows = given.rows or (128 if gpu else 8)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "shape": shape,
        "results": [],
    }
    with tempfile.TemporaryDirectory() as place:
        make_model(SHAPES[shape], Path(place))
        for method in given.methods:
            for size in micro:
                one = measure(Path(place), method, size, rows, given.steps)
                found["results"].append(one)
                if not given.json:
                    print(one, flush=True)
    if given.json:
        print(json.dumps(found))


def measure(place: Path, method: str, micro: int, rows: int, steps: int) -> dict[str, Any]:
    """Whole steps of the trainer's own loop, as a run makes them."""
    from flywheel.train_section import TrainSection
    from trainer.feed import Epochs
    from trainer.loop import train
    from trainer.metrics import read
    from trainer.models import load_base
    from trainer.parallel import joined
    from trainer.weights import start

    samples = made(rows, min(micro, 4096))
    settings = TrainSection(
        method=method, batch=rows, epochs=steps, micro_tokens=micro, checkpoint_every=10**6
    )  # type: ignore[arg-type]
    with joined() as ranks, tempfile.TemporaryDirectory() as folder:
        weights = start(load_base(place, threads=1), settings, None, 0, ranks)
        began = time.perf_counter()
        train(
            weights, Epochs(samples, settings), settings, Path(folder),
            job="gpu_step", activation_bytes=40 << 30,
        )  # fmt: skip
        spent = time.perf_counter() - began
        lines = read(Path(folder) / "metrics.jsonl")[2:]
    tokens = lines[0].computed_tokens
    return {
        "method": method,
        "micro_tokens": micro,
        "step_s": round(statistics.median(line.seconds for line in lines), 4),
        "flops_share": statistics.median(line.measured["flops_share"] or 0.0 for line in lines),
        "tokens": tokens,
        "waste": round(1 - tokens / (lines[0].micro_batches * micro), 4),
        "memory_mib": max(line.measured["memory_mib"] or 0.0 for line in lines),
        "whole_s": round(spent, 1),
    }


def made(rows: int, longest: int) -> list[Any]:
    """Rollouts of heavy-tailed length, half of each trained."""
    from trainer.samples import Sample

    dice = random.Random(0)
    samples = []
    for at in range(rows):
        size = max(16, min(longest, int(dice.lognormvariate(6.2, 0.9))))
        mask = tuple(place >= size // 2 for place in range(size))
        samples.append(
            Sample(
                row_id=f"{at:05d}",
                token_ids=tuple(dice.randrange(3, 500) for _ in range(size)),
                mask=mask,
                weights={"ce": tuple(map(float, mask))},
                template_digest="",
            )
        )
    return samples


def make_model(shape: dict[str, Any], place: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**shape, max_position_embeddings=32_768, tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(place)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (place / name).write_bytes((TOKENIZER / name).read_bytes())


if __name__ == "__main__":
    main()

"""Training beside TRL on the same weights and rows, one thread: the share of the processor's
measured matmul peak that goes into useful FLOPs; ours and SFTTrainer's best-fit packing at several
sizes, ours and GRPOTrainer's on rollouts that are there already.

    python benchmarks/training.py [--kinds sft grpo] [--methods lora full] [--rounds 3] [--rows 64]
                                  [--width 256] [--layers 6] [--vocabulary 4096] [--json]

Rounds alternate, so that what else the machine does falls on all; the best round counts. Time is
the processor's, from the first step's beginning to the last one's end: packing is in ours, TRL's is
done before. Useful FLOPs are those of every sample computed alone, by one formula for all: three
passes (two and the adapter's where weights are frozen), attention over what a token sees, the
output head at trained tokens only. What ours saves by computing a shared prompt once shows as a
higher share; `saved_by_prefixes` says how much of it that is. Goal: 1.3 times TRL's best.
`make install-trl` brings TRL.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRL = ROOT / ".venv-trl" / "bin" / "python"
TOKENIZER = ROOT / "tests" / "sorting" / "base"
GROUP = 8
Order = dict[str, Any]


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=["sft", "grpo"],
        help="what is trained: sft, grpo; default: %(default)s",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["lora", "full"],
        help="what learns: lora, full; default: %(default)s",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="rounds, which alternate; the best counts; default: %(default)s",
    )
    parser.add_argument("--rows", type=int, default=64, help="rows a round; default: %(default)s")
    parser.add_argument(
        "--width",
        type=int,
        default=256,
        help="of the random model's hidden states; default: %(default)s",
    )
    parser.add_argument(
        "--layers", type=int, default=6, help="of the random model; default: %(default)s"
    )
    parser.add_argument(
        "--vocabulary",
        type=int,
        default=4096,
        help="tokens that the random model knows; default: %(default)s",
    )
    parser.add_argument(
        "--budgets",
        type=int,
        nargs="+",
        default=[512, 1024, 2048],
        help="micro-batch sizes that are tried, in tokens; default: %(default)s",
    )
    parser.add_argument(
        "--rows-a-batch",
        type=int,
        nargs="+",
        default=[4, 8, 16],
        help="GRPO's micro-batch sizes at TRL, in rows; default: %(default)s",
    )
    parser.add_argument("--ours-only", action="store_true", help="leave TRL out")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = asked()
    if given.worker:
        work()
        return
    with tempfile.TemporaryDirectory() as folder:
        config = make_model(given, Path(folder))
        found = {"peak_gflops": round(peak() / 1e9, 1), "rows": given.rows, "results": []}
        for kind in given.kinds:
            for method in given.methods:
                found["results"].append(compare(kind, method, folder, config, given))
        found["peak_gflops_after"] = round(peak() / 1e9, 1)
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


def compare(
    kind: str, method: str, folder: str, config: Any, given: argparse.Namespace
) -> dict[str, Any]:
    rows = {"sft": sft_rows, "grpo": grpo_rows}[kind](given)
    order = {"what": kind, "method": method, "model": folder, "tokenizer": str(TOKENIZER), **rows}
    sides = {f"ours {size}": Side(ours(order, size)) for size in given.budgets}
    if not given.ours_only:
        sides |= {f"TRL {name}": Side(each) for name, each in trl(order, given).items()}
    for number in range(given.rounds + 1):
        for name, side in sides.items():
            side.round()
            print(
                f"{kind} {method} round {number}: {name} {side.seconds[-1]:.2f} s", file=sys.stderr
            )
    for side in sides.values():
        side.close()
    useful = flops(rows["ids"], rows["starts"], config, method)
    top = peak()
    shares = {name: useful / min(side.seconds[1:]) / top for name, side in sides.items()}
    best = {who: max((n for n in shares if n.startswith(who)), key=shares.get, default=None)
            for who in ("ours", "TRL")}  # fmt: skip
    return {
        "kind": kind,
        "method": method,
        "tokens": sum(map(len, rows["ids"])),
        "useful_tflop": round(useful / 1e12, 3),
        "share": {name: round(share, 3) for name, share in shares.items()},
        "cpu_s": {name: [round(one, 2) for one in side.seconds] for name, side in sides.items()},
        "loss": {name: side.loss for name, side in sides.items()},
        "over_trl": round(shares[best["ours"]] / shares[best["TRL"]], 2) if best["TRL"] else None,
        "saved_by_prefixes": saved(rows["ids"], rows["starts"], max(given.budgets)),
    }


def sft_rows(given: argparse.Namespace) -> dict[str, Any]:
    """Half of each row is trained; lengths have a heavy tail; no prefix is shared."""
    dice = random.Random(0)
    sizes = [
        max(24, min(min(given.budgets), int(dice.lognormvariate(5, 0.8))))
        for _ in range(given.rows)
    ]
    ids = [[dice.randrange(3, 512) for _ in range(size)] for size in sizes]
    return {"ids": ids, "starts": [len(one) // 2 for one in ids]}


def grpo_rows(given: argparse.Namespace) -> dict[str, Any]:
    """Groups of eight answers to one prompt."""
    dice = random.Random(1)
    found: dict[str, Any] = {"ids": [], "starts": [], "logprobs": [], "group_size": GROUP}
    for _ in range(given.rows // GROUP):
        prompt = [dice.randrange(3, 512) for _ in range(dice.randint(60, 160))]
        for _ in range(GROUP):
            size = max(12, min(300, int(dice.lognormvariate(4.3, 0.7))))
            found["ids"].append(prompt + [dice.randrange(3, 512) for _ in range(size)])
            found["starts"].append(len(prompt))
            found["logprobs"].append([-6.2] * size)
    return found


def trl(order: Order, given: argparse.Namespace) -> dict[str, list[str | Order]]:
    """What is worth trying of its settings: each packing, and padding."""
    script = str(Path(__file__).with_name("training_trl.py"))

    def command(rows: int, batches: int, **more: Any) -> list[str | Order]:
        each = {"rows_a_batch": rows, "batches_a_step": batches}
        return [str(TRL), script, {**order, **each, **more}]

    if order["what"] == "grpo":
        step = GROUP * 2
        return {f"{n} a batch": command(n, step // n) for n in given.rows_a_batch}
    return {
        f"bfd {size}": command(1, max(1, 2048 // size), packing=True, max_length=size)
        for size in given.budgets
    }


def ours(order: Order, micro_tokens: int) -> list[str | Order]:
    return [sys.executable, __file__, "--worker", {**order, "micro_tokens": micro_tokens}]


class Side:
    """A trainer in a process of its own, one epoch a round."""

    def __init__(self, command: list[str | Order]) -> None:
        *program, order = command
        self.process = subprocess.Popen(
            [str(part) for part in program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1",
                            "TRL_EXPERIMENTAL_SILENCE": "1", "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        self.seconds: list[float] = []
        self.loss: float | None = None
        self._ask(json.dumps(order))

    def round(self) -> None:
        found = self._ask("go")
        self.seconds.append(found["cpu_s"])
        self.loss = self.loss if self.loss is not None else found["loss"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        for said in self.process.stdout:
            if said.startswith("{") and '"' in said:
                try:
                    return json.loads(said)
                except ValueError:
                    continue
        raise SystemExit(f"a trainer ended: {self.process.wait()}")


def work() -> None:
    """Ours: trainer/packing.py, forward.py and losses as the loop uses them."""
    import torch

    from flywheel.train_section import TrainSection
    from trainer.forward import recompute_layers, score
    from trainer.losses import count_units, reduce
    from trainer.models import load_base
    from trainer.packing import pack
    from trainer.parallel import ALONE
    from trainer.samples import Sample
    from trainer.weights import start

    order = json.loads(sys.stdin.readline())
    settings = TrainSection(method=order["method"], rank=8, alpha=16)
    base = load_base(Path(order["model"]), threads=1)
    model = start(base, settings, None, 0, ALONE).model
    model.train()
    samples = [made(Sample, order, at) for at in range(len(order["ids"]))]
    learning = [each for each in model.parameters() if each.requires_grad]
    print(json.dumps({"ready": True}), flush=True)
    step = GROUP * 2
    for _ in sys.stdin:
        optimizer = torch.optim.AdamW(learning, lr=1e-4)
        began = time.process_time()
        total = 0.0
        for at in range(0, len(samples), step):
            chosen = samples[at : at + step]
            counts = count_units(chosen, settings)
            optimizer.zero_grad(set_to_none=True)
            for packed in pack(chosen, order["micro_tokens"]):
                recompute_layers(model, len(packed.token_ids), 4 << 30)
                scores = score(model, packed)
                shares = reduce(packed, scores.logprobs, counts, settings).shares
                loss = torch.stack(list(shares.values())).sum()
                loss.backward()
                total += float(loss.detach())
            torch.nn.utils.clip_grad_norm_(learning, 1.0)
            optimizer.step()
        spent = time.process_time() - began
        print(json.dumps({"cpu_s": spent, "loss": total * step / len(samples)}), flush=True)


def made(kind: Any, order: Order, at: int) -> Any:
    ids, start = order["ids"][at], order["starts"][at]
    mask = tuple(place >= start for place in range(len(ids)))
    on = tuple(map(float, mask))
    rl = order["what"] == "grpo"
    more = {}
    if rl:
        more = {
            "advantages": tuple(one * (1.0 if at % 2 else -1.0) for one in on),
            "behaviour_logprobs": (0.0,) * start + tuple(order["logprobs"][at]),
            "group_id": str(at // GROUP),
        }
    return kind(
        row_id=f"{at:05d}", token_ids=tuple(ids), mask=mask, template_digest="",
        weights={"rl" if rl else "ce": on}, **more,
    )  # fmt: skip


def make_model(given: argparse.Namespace, folder: Path) -> Any:
    import shutil

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=given.vocabulary, hidden_size=given.width, num_hidden_layers=given.layers,
        intermediate_size=int(2.75 * given.width), num_attention_heads=given.width // 64,
        num_key_value_heads=max(1, given.width // 128), max_position_embeddings=8192,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)
    return config


def peak() -> float:
    """FLOPs a processor second of the best of a few products of 1024 x 1024, one thread."""
    import torch

    torch.set_num_threads(1)
    one = torch.randn(1024, 1024)
    best = 0.0
    for _ in range(12):
        began = time.process_time()
        one @ one
        best = max(best, 2 * 1024**3 / (time.process_time() - began))
    return best


def flops(ids: list[list[int]], starts: list[int], config: Any, method: str) -> float:
    """A multiplication and an addition are two. Passes: forward, by inputs, and, where they learn,
    by weights."""
    w, inner = config.hidden_size, config.intermediate_size
    narrow = w * config.num_key_value_heads // config.num_attention_heads
    linear = 2 * (2 * w * w + 2 * w * narrow + 3 * w * inner)
    ends = 2 * 2 * w + 2 * (w + narrow) + 3 * (w + inner)  # inputs and outputs of a layer's parts
    passes = 3 if method == "full" else 2
    lora = 0 if method == "full" else 3 * 2 * 8 * ends
    total = 0.0
    for one, start in zip(ids, starts, strict=True):
        n, seen = len(one), len(one) * (len(one) + 1) / 2
        total += config.num_hidden_layers * (n * (passes * linear + lora) + 3 * 4 * w * seen)
        total += passes * 2 * w * config.vocab_size * (n - start)
    return total


def saved(ids: list[list[int]], starts: list[int], budget: int) -> float:
    """Share of the samples' tokens that ours need not compute."""
    from trainer.fitting import cost_of, plan
    from trainer.samples import Sample

    order = {"what": "sft", "ids": ids, "starts": starts}
    samples = [made(Sample, order, at) for at in range(len(ids))]
    packs = [
        group
        for at in range(0, len(samples), 2 * GROUP)
        for group in plan(samples[at : at + 2 * GROUP], budget)
    ]
    return round(1 - sum(cost_of(group).tokens for group in packs) / sum(map(len, ids)), 3)


def show(found: dict[str, Any]) -> None:
    print(f"matmul peak {found['peak_gflops']} GFLOP/s, {found['rows']} rows")
    for one in found["results"]:
        print(f"{one['kind']}, {one['method']}: {one['tokens']} tokens; ours over TRL's best: "
              f"{one['over_trl']}; not computed twice: {one['saved_by_prefixes']:.0%}")  # fmt: skip
        for name, share in one["share"].items():
            print(f"  {name:<16} {share:6.3f} of peak   loss {one['loss'][name]}")


if __name__ == "__main__":
    main()

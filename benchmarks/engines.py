"""The embedded engine and vLLM's CPU build on the same model and prompts, in one run: tokens a
second at 1, 16 and 64 in flight (of the base and of an adapter), memory, what a start costs, how
long a new adapter takes until it has answered.

    python benchmarks/engines.py [--model NAME] [--answer 32] [--in-flight 1 16 64] [--threads 1]
                                 [--rounds 2] [--engines embedded vllm] [--json]

Prompts are the support inbox's shape: a prefix that all share, and a text of their own. Each count
in flight is tried in `--rounds` rounds, after a round of warming up, engines one after the other;
the best round counts, as others may use the machine. CPU seconds are those of the whole tree of
processes, so that they say what a wall clock on a busy machine cannot.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

WORDS = str.split(
    "order number invoice broken screen refund please parcel late address wrong colour charge "
    "twice cancel account locked password reset email delivery friday again thanks return label"
)
SHARED = (
    "You sort messages of customers into kinds and answer in JSON, with nothing beside it. " * 12
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--answer", type=int, default=32, help="tokens an answer")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--engines", nargs="+", default=["embedded", "vllm"])
    parser.add_argument("--folder", type=Path, help="for logs that stay")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    from flywheel.settings import load, quiet_dependencies

    settings = load()
    model = settings.models / given.model
    model = model if model.is_dir() else Path(given.model).resolve()
    with contextlib.ExitStack() as stack:
        place = given.folder or stack.enter_context(tempfile.TemporaryDirectory())
        quiet_dependencies(settings.at())
        adapters = [make_adapter(model, Path(place) / f"adapter{n}", n) for n in range(3)]
        found: dict[str, Any] = {
            "machine": machine(given.threads),
            "model": model.name,
            "answer_tokens": given.answer,
            "engines": {
                name: measure(name, model, adapters, Path(place) / name, given)
                for name in given.engines
            },
        }
    found["ratios"] = ratios(found["engines"])
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


def measure(
    name: str, model: Path, adapters: Sequence[Path], place: Path, given: argparse.Namespace
) -> dict[str, Any]:
    """One engine, from its start to its stop."""
    from flywheel.home import Home
    from flywheel.serving_section import ServingSection
    from flywheel.settings import load
    from serving.engines.table import ENGINES

    serving = ServingSection(
        engine="vllm" if name == "vllm" else "embedded",
        context=1024,
        max_concurrent=max(given.in_flight),
    )
    settings = load().model_copy(update={"threads": given.threads})
    engine = ENGINES[name](Home(place), model, serving, settings, dict)
    starts = [start(engine) for _ in range(2)]
    try:
        with engine.client() as client:
            swaps = [swap(client, f"adapter-v{n}", folder) for n, folder in enumerate(adapters)]
            speeds = {
                who: {
                    str(count): speed(client, who, count, given, lambda: cpu_of(engine))
                    for count in given.in_flight
                }
                for who in ("base", "adapter-v0")
            }
        memory = sum(one.memory_full_info().pss for one in tree(engine))
    finally:
        engine.stop()
    return {
        # The first start of an installation compiles modules; the second is every other one.
        "first_start": starts[0],
        "start": starts[1],
        "swap_s": round(min(swaps), 3),
        "swaps_s": [round(one, 3) for one in swaps],
        "memory_gib": round(memory / 2**30, 2),
        "base": speeds["base"],
        "adapter": speeds["adapter-v0"],
    }


def start(engine: Any) -> dict[str, float]:
    if engine.alive:
        engine.stop()
    began = time.monotonic()
    engine.start()
    return {"wall_s": round(time.monotonic() - began, 1), "cpu_s": round(cpu_of(engine), 1)}


def swap(client: Any, name: str, folder: Path) -> float:
    """Until a new adapter has answered."""
    began = time.monotonic()
    client.load_adapter(name, folder)
    client.generate(name, [1, 2, 3], max_tokens=1)
    return time.monotonic() - began


def speed(
    client: Any, model: str, count: int, given: argparse.Namespace, cpu: Callable[[], float]
) -> dict[str, float]:
    """The best round's tokens a second, by the wall and by the engine's own processor time."""
    ask(client, model, count, given, 0)
    rounds = []
    for number in range(1, given.rounds + 1):
        spent, began = cpu(), time.monotonic()
        tokens = ask(client, model, count, given, number)
        wall = time.monotonic() - began
        rounds.append((tokens / wall, tokens / max(0.01, cpu() - spent)))
    wall_best, cpu_best = (max(values) for values in zip(*rounds, strict=True))
    return {"tokens_s": round(wall_best, 1), "tokens_cpu_s": round(cpu_best, 1)}


def ask(client: Any, model: str, count: int, given: argparse.Namespace, number: int) -> int:
    def one(place: int) -> int:
        dice = random.Random(number * 1000 + place)
        text = " ".join(dice.choice(WORDS) for _ in range(20))
        answer = client.chat(
            model,
            [{"role": "system", "content": SHARED}, {"role": "user", "content": text}],
            max_tokens=given.answer,
            temperature=0.7,
            seed=place,
            logprobs=True,
            return_token_ids=True,
            ignore_eos=True,
        )
        return int(answer["usage"]["completion_tokens"])

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return sum(pool.map(one, range(count)))


def tree(engine: Any) -> list[psutil.Process]:
    first = psutil.Process(engine.pid)
    return [first, *first.children(recursive=True)]


def cpu_of(engine: Any) -> float:
    total = 0.0
    for process in tree(engine):
        with contextlib.suppress(psutil.Error):
            spent = process.cpu_times()
            total += spent.user + spent.system
    return total


def make_adapter(model: Path, folder: Path, seed: int) -> Path:
    """Rank 8 on all linear layers, of noise."""
    import torch

    from trainer.models import add_adapter, load_base, save_adapter

    loaded = load_base(model).model
    random_numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in add_adapter(loaded, "made", seed=seed):
            parameter.add_(torch.randn(parameter.shape, generator=random_numbers) * 0.01)
    save_adapter(loaded, "made", folder)
    return folder


def machine(threads: int) -> dict[str, Any]:
    name = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "threads": threads,
        "load_before": round(os.getloadavg()[0], 1),
    }


def ratios(engines: dict[str, Any]) -> dict[str, Any]:
    """vLLM over embedded; over 1 is more."""
    if not {"embedded", "vllm"} <= set(engines):
        return {}
    ours, theirs = engines["embedded"], engines["vllm"]
    return {
        **{
            f"{who}_tokens_{unit}_{count}": round(
                theirs[who][count][f"tokens_{unit}"] / ours[who][count][f"tokens_{unit}"], 2
            )
            for who in ("base", "adapter")
            for count in ours[who]
            for unit in ("s", "cpu_s")
        },
        "memory": round(theirs["memory_gib"] / ours["memory_gib"], 2),
        "start_cpu": round(theirs["start"]["cpu_s"] / ours["start"]["cpu_s"], 2),
        "swap": round(theirs["swap_s"] / ours["swap_s"], 2),
    }


def show(found: dict[str, Any]) -> None:
    print(f"{found['model']} on {found['machine']}")
    for name, one in found["engines"].items():
        print(
            f"{name}: start {one['start']['cpu_s']} CPU s ({one['start']['wall_s']} s), "
            f"{one['memory_gib']} GiB, adapter in {one['swap_s']} s"
        )
        for who in ("base", "adapter"):
            for count, speeds in one[who].items():
                print(
                    f"  {who:<8} {count:>3} in flight  {speeds['tokens_s']:8.1f} tokens/s  "
                    f"{speeds['tokens_cpu_s']:8.1f} tokens a CPU second"
                )
    for name, value in found["ratios"].items():
        print(f"vLLM over embedded, {name}: {value}")


if __name__ == "__main__":
    main()

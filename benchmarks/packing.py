"""Packing: the share of a micro-batch's places that stay empty, and the processor time of filling
them, for rollouts with lengths of heavy tail; ours as a stream and with all rows there, beside what
others do. And what is computed where a group's answers share their prompt.

    python benchmarks/packing.py [--rows 512] [--many 20000] [--budget 8192] [--window 64] [--json]

The stream sees rollouts in the order that they end in and never more than `window` of them: the
delay is how many micro-batches went before one that waited. Its waste is of the micro-batches made
while the stream ran; the end, where no more comes to fill the last ones, is in `waste_all`.
The goal is under 3% as a stream. TRL's packing runs in its own environment (`make install-trl`).
"""

import argparse
import bisect
import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TRL = Path(__file__).resolve().parents[1] / ".venv-trl" / "bin" / "python"
Bins = list[list[int]]
"""Lengths, micro-batch by micro-batch."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, default=512, help="rows that are packed; default: %(default)s"
    )
    parser.add_argument(
        "--many",
        type=int,
        default=20_000,
        help="rows that packing is timed on; default: %(default)s",
    )
    parser.add_argument(
        "--budget",
        type=int,
        default=8192,
        help="places of a micro-batch, in tokens; default: %(default)s",
    )
    parser.add_argument(
        "--window",
        type=int,
        default=64,
        help="rows that the stream holds at most; default: %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    given = parser.parse_args()
    found = {
        "lengths": f"lognormal, median 1100, sigma 0.9, cut at {given.budget}",
        "budget": given.budget,
        "few": compare(lengths(given.rows, given.budget), given),
        "many": compare(lengths(given.many, given.budget), given),
        "groups": groups(given),
        "goal": {"stream_waste": 0.03},
    }
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


def lengths(rows: int, budget: int) -> list[int]:
    dice = random.Random(rows)
    return [max(16, min(budget, int(dice.lognormvariate(7, 0.9)))) for _ in range(rows)]


def compare(sizes: list[int], given: argparse.Namespace) -> dict[str, Any]:
    found = {
        "ours, a stream": ours_streaming(sizes, given),
        "ours, all there": timed(sizes, given.budget, ours),
        "best-fit decreasing": timed(sizes, given.budget, best_fit_decreasing),
        "next-fit, a stream": timed(sizes, given.budget, next_fit),
        "padding, eight a batch": timed(sizes, given.budget, padded),
    }
    if TRL.exists():
        found["TRL bfd"] = trl(sizes, given.budget)
    return found


def ours_streaming(sizes: list[int], given: argparse.Namespace) -> dict[str, Any]:
    """Also: how many micro-batches went before a sample that waited, at most."""
    from trainer.fitting import Unit, fit

    samples = [sample(at, size) for at, size in enumerate(sizes)]
    arrived, known, waited, running = 0, 0, 0, 0
    came: dict[str, int] = {}

    def arriving() -> Iterator[Unit]:
        nonlocal arrived
        for one in samples:
            arrived += 1
            yield (one,)

    bins: Bins = []
    began = time.process_time()
    for number, group in enumerate(fit(arriving(), given.budget, window=given.window)):
        came |= {str(at): number for at in range(known, arrived)}
        known = arrived
        running = len(bins) + 1 if arrived < len(samples) else running
        waited = max(waited, *(number - came.pop(unit[0].row_id) for unit in group))
        bins.append([len(unit[0].token_ids) for unit in group])
    spent = time.process_time() - began
    return {
        "waste": waste(bins[:running], given.budget),
        "waste_all": waste(bins, given.budget),
        "cpu_s": round(spent, 2),
        "window": given.window,
        "longest_wait": waited,
    }


def ours(sizes: list[int], budget: int) -> Callable[[], Bins]:
    from trainer.fitting import plan

    samples = [sample(at, size) for at, size in enumerate(sizes)]
    return lambda: [[len(one.token_ids) for one in group] for group in plan(samples, budget)]


def sample(name: int, size: int) -> Any:
    """Its first token is its own: no two share a prefix."""
    from trainer.samples import Sample

    mask = (False,) + (True,) * (size - 1)
    weights = {"ce": (1.0,) * size}
    ids = (name, *range(1, size))
    return Sample(row_id=str(name), token_ids=ids, mask=mask, weights=weights, template_digest="")


def best_fit_decreasing(sizes: list[int], budget: int) -> Callable[[], Bins]:
    """With all rows there and sorted: each goes where the least room is left."""

    def run() -> Bins:
        bins: Bins = []
        rooms: list[tuple[int, int]] = []
        for size in sorted(sizes, reverse=True):
            at = bisect.bisect_left(rooms, (size, -1))
            room, number = rooms.pop(at) if at < len(rooms) else (budget, len(bins))
            if number == len(bins):
                bins.append([])
            bins[number].append(size)
            bisect.insort(rooms, (room - size, number))
        return bins

    return run


def next_fit(sizes: list[int], budget: int) -> Callable[[], Bins]:
    """One micro-batch is open; what does not fit opens the next."""

    def run() -> Bins:
        bins: Bins = [[]]
        for size in sizes:
            if sum(bins[-1]) + size > budget:
                bins.append([])
            bins[-1].append(size)
        return bins

    return run


def padded(sizes: list[int], budget: int) -> Callable[[], Bins]:
    return lambda: [sizes[at : at + 8] for at in range(0, len(sizes), 8)]


def timed(
    sizes: list[int], budget: int, rule: Callable[[list[int], int], Callable[[], Bins]]
) -> dict[str, Any]:
    run = rule(sizes, budget)
    began = time.process_time()
    bins = run()
    spent = time.process_time() - began
    assert sum(map(sum, bins)) == sum(sizes)
    if rule is padded:
        places = sum(len(one) * max(one) for one in bins)
        return {"waste_all": round(1 - sum(sizes) / places, 4), "cpu_s": round(spent, 2)}
    return {"waste_all": waste(bins, budget), "cpu_s": round(spent, 2)}


def trl(sizes: list[int], budget: int) -> dict[str, Any]:
    script = Path(__file__).with_name("training_trl.py")
    order = json.dumps({"what": "pack", "lengths": sizes, "budget": budget})
    done = subprocess.run([TRL, script], input=order, text=True, capture_output=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {"waste_all": waste(found["bins"], budget), "cpu_s": round(found["cpu_s"], 2)}


def waste(bins: Bins, budget: int) -> float:
    return round(1 - sum(map(sum, bins)) / (budget * len(bins)), 4)


def groups(given: argparse.Namespace) -> dict[str, Any]:
    """Eight answers a problem to a prompt of 800 tokens, the first 200 of which all share: tokens
    computed with each prefix once a micro-batch, over those computed with every sample alone."""
    from trainer.fitting import cost_of, plan
    from trainer.samples import Sample

    dice = random.Random(0)
    samples = []
    for problem in range(given.rows // 8):
        prompt = (*range(200), 1000 + problem, *range(599))
        for k in range(8):
            size = max(16, min(given.budget - 900, int(dice.lognormvariate(6, 0.9))))
            ids = (*prompt, 10_000 + k, *range(size - 1))
            mask = (False,) * len(prompt) + (True,) * size
            samples.append(
                Sample(
                    row_id=f"{problem}.{k}", token_ids=ids, mask=mask, template_digest="",
                    weights={"ce": tuple(map(float, mask))},
                )
            )  # fmt: skip
    alone = sum(len(one.token_ids) for one in samples)
    packs = [cost_of(group).tokens for group in plan(samples, given.budget)]
    return {
        "rows": len(samples),
        "waste_all": round(1 - sum(packs) / (given.budget * len(packs)), 4),
        "computed_over_alone": round(sum(packs) / alone, 3),
        "floor": round(cost_of(samples).tokens / alone, 3),
    }


def show(found: dict[str, Any]) -> None:
    for name in ("few", "many"):
        print(f"{name} rows ({found['lengths']}), micro-batches of {found['budget']} tokens")
        for rule, one in found[name].items():
            stream = f", while it runs {one['waste']:.2%}" if "waste" in one else ""
            wait = f", longest wait {one['longest_wait']}" if "longest_wait" in one else ""
            print(f"  {rule:<24} {one['waste_all']:7.2%} {one['cpu_s']:6.2f} CPU s{stream}{wait}")
    print("groups of 8 on one prompt:", found["groups"])


if __name__ == "__main__":
    main()

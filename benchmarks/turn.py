"""What a turn of the demo costs beside its work: the share of its wall time spent outside
generation, training and evaluation, and its peak memory. Imports of this process are paid before
and shown apart.

    python benchmarks/turn.py [--turns 1] [--json]

There is no peer to run beside it: the floor is the work itself, which the same run measures. The
goal is a share under 0.10.
"""

import argparse
import contextlib
import importlib
import json
import threading
import time
from typing import Any

import psutil

WORK = {
    "generation": ("sample_chunk",),
    "training": ("train_candidate",),
    "evaluation": ("answer_heldout",),
}
"""Steps that are the work itself; all others, and what is between them, are overhead."""
IMPORTS = (
    "flows.turn", "storage.gate", "great_expectations", "mlflow", "openai", "scipy.stats",
    "sklearn.feature_extraction.text", "duckdb", "polars",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    from app.demo import prepare, run
    from app.start import start

    home = prepare(start(progress=True))
    settings = start()
    began = time.monotonic()
    for name in IMPORTS:
        importlib.import_module(name)
    imports = time.monotonic() - began
    with PeakMemory() as memory:
        turns = [measured(report) for report in run(home, settings, given.turns)["turns"]]
    found = {
        "imports_s": round(imports, 1),
        "peak_pss_gib": round(memory.peak / 2**30, 2),
        "turns": turns,
        "goal": 0.10,
    }
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


class PeakMemory:
    """The largest proportional set size of this process and all its descendants, sampled each
    second; bytes."""

    def __init__(self) -> None:
        self.peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._over.wait(1.0):
            total = 0
            for process in [own, *own.children(recursive=True)]:
                with contextlib.suppress(psutil.Error, OSError):
                    total += process.memory_full_info().pss
            self.peak = max(self.peak, total)


def measured(report: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each part of one turn."""
    steps, wall = report["steps"], report["seconds"]
    work = {name: round(sum(steps.get(s, 0.0) for s in of), 1) for name, of in WORK.items()}
    outside = wall - sum(work.values())
    named = {s for of in WORK.values() for s in of}
    rest = {name: seconds for name, seconds in steps.items() if name not in named}
    return {
        "decision": report["decision"],
        "wall_s": wall,
        **{f"{name}_s": seconds for name, seconds in work.items()},
        "outside_s": round(outside, 1),
        "outside_share": round(outside / wall, 3),
        "outside_steps": rest,
    }


def show(found: dict[str, Any]) -> None:
    print(f"imports, apart: {found['imports_s']} s")
    print(f"peak memory of the process tree (PSS): {found['peak_pss_gib']} GiB")
    for number, turn in enumerate(found["turns"], 1):
        print(f"turn {number} ({turn['decision']}): {turn['wall_s']} s")
        for name in (*WORK, "outside"):
            seconds = turn[f"{name}_s"]
            print(f"  {name:<12} {seconds:8.1f} s  {seconds / turn['wall_s']:6.1%}")
        for name, seconds in turn["outside_steps"].items():
            print(f"    {name:<22} {seconds:6.1f} s")
    print(f"goal: outside under {found['goal']:.0%}")


if __name__ == "__main__":
    main()

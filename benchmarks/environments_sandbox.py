"""Sandboxes: from a start to the program's result, beside plain subprocess (goal: 30 ms added).

Both run the same small program, in turns, so that what else the machine does meets both alike.
`fresh` makes a runtime, runs one program and takes it down; `started` runs one in a runtime that is
there already.

    python benchmarks/environments.py sandbox [--times 100]
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from environments.runtimes.contract import Ran, Runtime, Sandbox
from environments.runtimes.table import open_runtime

PROGRAMS = {
    "sh": ["/bin/sh", "-c", "echo 42"],
    "python": ["/usr/bin/python3", "-S", "-c", "print(42)"],
}
BARE = {"PATH": "/usr/bin:/bin"}
"""What a sandbox gives a program."""


def plain(command: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=BARE)
    assert done.stdout == "42\n", done
    return time.perf_counter() - began


async def fresh(command: list[str], folder: Path) -> tuple[float, float]:
    """Until the result is there, and until the runtime is gone."""
    began = time.perf_counter()
    runtime = open_runtime(Sandbox(), folder)
    await runtime.start()
    ran = await runtime.exec(command)
    there = time.perf_counter() - began
    check(ran)
    await runtime.stop()
    return there, time.perf_counter() - began


async def started(command: list[str], runtime: Runtime) -> float:
    began = time.perf_counter()
    ran = await runtime.exec(command)
    took = time.perf_counter() - began
    check(ran)
    return took


def check(ran: Ran) -> None:
    assert ran.ok and ran.stdout == "42\n", ran


async def bench(times: int) -> dict[str, Any]:
    found: dict[str, Any] = {"times": times, "goal_added_ms": 30}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        runtime = open_runtime(Sandbox(), folder / "started")
        await runtime.start()
        for name, command in PROGRAMS.items():
            if not Path(command[0]).exists():
                continue
            taken: dict[str, list[float]] = {
                "subprocess": [],
                "fresh": [],
                "gone": [],
                "started": [],
            }
            for number in range(times + 5):
                one = {"subprocess": plain(command)}
                one["fresh"], one["gone"] = await fresh(command, folder / f"{name}-{number}")
                one["started"] = await started(command, runtime)
                if number >= 5:  # the first ones warm the machine's caches
                    for kind, seconds in one.items():
                        taken[kind].append(seconds)
            found[name] = summary(taken)
            print(f"{name:7} {found[name]}", file=sys.stderr)
        await runtime.stop()
    return found


def summary(taken: dict[str, list[float]]) -> dict[str, Any]:
    """Milliseconds."""
    cuts = {kind: quantiles(seconds, n=100) for kind, seconds in taken.items()}
    found: dict[str, Any] = {
        kind: {"p50": round(1000 * cut[49], 2), "p99": round(1000 * cut[98], 2)}
        for kind, cut in cuts.items()
    }
    for kind in ("fresh", "started"):
        added = {f: round(found[kind][f] - found["subprocess"][f], 2) for f in ("p50", "p99")}
        found[f"{kind}_added"] = added
    return found


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="environments.py sandbox", description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    options, _ = parser.parse_known_args(arguments)
    return asyncio.run(bench(options.times))

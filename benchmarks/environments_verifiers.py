"""The peer's side of environments_rollouts.py, in the environment where verifiers is installed.

One answer to each task with its null harness: a chat program of its own a rollout, here on this
machine, nothing pushed or fetched. Prints one JSON object: seconds of wall and of CPU,
and of the latter how much was this process without those programs.

    .venv-verifiers/bin/python -m benchmarks.environments_verifiers URL IN_FLIGHT ROLLOUTS
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from environments.verifiers.bridge import _OFF, _context, _without_downloads

__all__ = ["Orders"]


class Order(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def shipped(self, trace: vf.Trace) -> float:
        return float("shipped" in (trace.last_reply or ""))


class Orders(vf.Taskset[Order, vf.TasksetConfig]):
    def load(self) -> Iterable[Order]:
        for number in range(2**31):
            yield Order(vf.TaskData(prompt=f"Where is order {number}?"), self.config.task)


def cpu() -> tuple[float, float]:
    """Of this process, and of the chat programs that ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, theirs = (one.ru_utime + one.ru_stime for one in both)
    return own, theirs


async def play(url: str, in_flight: int, rollouts: int) -> dict[str, Any]:
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    taskset = {"id": "environments_verifiers"}
    env = load_environment(resolve_env_config({"taskset": taskset, "agent": agent}))
    os.environ["ROLLOUT_KEY"] = "none"
    context = _context({"url": f"{url}/v1", "model": "base"}, "ROLLOUT_KEY")
    turn, rewards = asyncio.Semaphore(in_flight), []

    async def one(task: Any) -> None:
        async with turn:
            episode = await env.run_episode(task, context)
            (trace,) = episode.traces
            if not episode.ok:
                raise SystemExit(f"verifiers: {[*episode.errors, *trace.errors]}"[:3000])
            rewards.append(trace.rewards["shipped"].score)

    async with env.serving():
        tasks = iter(env.taskset)
        await one(next(tasks))
        rewards.clear()
        began, used = time.perf_counter(), cpu()
        await asyncio.gather(*(one(next(tasks)) for _ in range(rollouts)))
        seconds = time.perf_counter() - began
        own, programs = (now - before for now, before in zip(cpu(), used, strict=True))
    assert rewards == [1.0] * rollouts
    return {
        "rollouts": rollouts,
        "seconds": seconds,
        "cpu_s": own + programs,
        "own_cpu_s": own,
    }


def main() -> None:
    os.environ.update(_OFF)
    sys.path.append(str(Path(__file__).parent))
    _without_downloads()
    url, in_flight, rollouts = sys.argv[1:]
    print(json.dumps(asyncio.run(play(url, int(in_flight), int(rollouts)))))


if __name__ == "__main__":
    main()

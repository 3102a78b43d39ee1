"""Rollouts in flight: how many a second and what each costs, beside verifiers' null harness.

A model whose every answer takes 50 ms (a process of its own, not counted) is asked once a rollout:
ours by `environments.episodes` with the single-turn harness over the interception, graded by one
reward; the peer by its null harness with one reward. Each count in flight is a process of its own;
its CPU, and that of all it starts, is divided by its rollouts. One rollout warms it up. With
`--memory N` ours plays N more, and its memory is read at every tenth.

    python benchmarks/environments.py rollouts [--in-flight 1 32 256] [--rollouts N]
        [--peer-rollouts N] [--peer PYTHON | --no-peer] [--memory 100000]
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from environments.define import Environment
    from flywheel.records import Problem, Trace

ROOT = Path(__file__).resolve().parent.parent
DELAY_S = 0.05
PEER = ROOT / ".venv-verifiers" / "bin" / "python"
CHUNK = 500
"""Traces graded together."""


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="environments.py rollouts", description=__doc__)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--rollouts", type=int, default=4000, help="of ours at most, each count")
    parser.add_argument("--peer-rollouts", type=int, default=256, help="of the peer's, at most")
    parser.add_argument("--peer", type=Path, default=PEER)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--memory", type=int, default=0)
    given = parser.parse_known_args(arguments)[0]
    found: dict[str, Any] = {"delay_s": DELAY_S, "in_flight": {}}
    with upstream() as url:
        for count in given.in_flight:
            row = found["in_flight"][count] = {"ours": ours(url, count, given.rollouts)}
            if not given.no_peer:
                row["verifiers"] = peer(given.peer, url, count, given.peer_rollouts)
            print(_told(count, row), flush=True)
        if given.memory:
            found["memory"] = child("memory", url, 256, given.memory)
            print(_memory(found["memory"]), flush=True)
    return found


def ours(url: str, in_flight: int, most: int) -> dict[str, Any]:
    return child("ours", url, in_flight, min(most, 60 * in_flight))


def peer(python: Path, url: str, in_flight: int, most: int) -> dict[str, Any]:
    if not python.exists():
        return {"why": f"no verifiers at {python}: make install-verifiers"}
    rollouts = min(most, max(4, in_flight))
    command = [str(python), "-m", "benchmarks.environments_verifiers"]
    at_once = min(in_flight, rollouts)
    return {**_run([*command, url, str(in_flight), str(rollouts)]), "at_once": at_once}


def child(role: str, url: str, in_flight: int, rollouts: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.environments_rollouts", role, url]
    return _run([*command, str(in_flight), str(rollouts)])


def _run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "cpu_s" in said:
        said["a_second"] = said["rollouts"] / said["seconds"]
        said["cpu_ms"] = 1000 * said["cpu_s"] / said["rollouts"]
        said["own_ms"] = 1000 * said.get("own_cpu_s", said["cpu_s"]) / said["rollouts"]
    return said


def _told(count: int, row: dict[str, Any]) -> str:
    parts = [f"{count:4d} in flight"]
    for name, said in row.items():
        told = said.get("why") or f"{said['a_second']:8.1f}/s {said['cpu_ms']:8.2f} ms CPU each"
        some = f" ({said['at_once']} at once)" if said.get("at_once", count) < count else ""
        parts.append(f"{name} {told}{some}")
    if "cpu_ms" in row.get("verifiers", {}):
        whole, own = (row["verifiers"][key] / row["ours"]["cpu_ms"] for key in ("cpu_ms", "own_ms"))
        parts.append(f"{whole:.0f} times; its process alone, without chat programs: {own:.0f}")
    return "   ".join(parts)


def _memory(said: dict[str, Any]) -> str:
    return f"memory over {said['rollouts']} rollouts, MB: {said['mb']}"


# --- ours, in a process of its own --------------------------------------------------------------


def cpu() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def orders() -> "Environment":
    """One reward, which the scripted model's answer earns."""
    from environments.define import Environment, reward
    from flywheel.records import Trace, last_answer

    class Orders(Environment):
        @reward()
        def shipped(self, trace: Trace) -> float:
            choice = last_answer(trace)
            return float(choice is not None and "shipped" in choice.message.text)

    return Orders()


def attempts(start: int, many: int) -> "Iterator[tuple[Problem, int]]":
    from flywheel.records import Problem, say

    for number in range(start, start + many):
        yield Problem(environment="b", messages=(say("user", f"Where is order {number}?"),)), 0


def grade(environment: "Environment", batch: "list[Trace]") -> int:
    from environments.grading import Item, grade_all

    given = grade_all(environment, [Item(trace) for trace in batch])
    assert all(one.value == 1.0 for grades in given for one in grades)
    return len(given)


async def play(url: str, in_flight: int, rollouts: int, *, memory: bool) -> dict[str, Any]:
    from environments.episodes import Run, episodes
    from serving.interception import Interception, Served

    environment, run = orders(), Run("bench", "run", "rollout", concurrency=in_flight)
    served = Served(url, "base", deployment="bench-v0", template_digest="t", base="")
    graded, sizes, batch = 0, list[int](), list["Trace"]()
    async with Interception(served) as recorder:
        async for _ in episodes(environment, attempts(0, 1), recorder, run):
            pass
        sizes.append(resident_mb())
        began, used = time.perf_counter(), cpu()
        async for finished in episodes(environment, attempts(1, rollouts), recorder, run):
            batch.append(finished.trace)
            if len(batch) == CHUNK:
                graded += grade(environment, batch)
                batch.clear()
                if graded * 10 // rollouts >= len(sizes):
                    sizes.append(resident_mb())
        graded += grade(environment, batch)
        seconds, spent = time.perf_counter() - began, cpu() - used
    assert graded == rollouts
    found = {"rollouts": rollouts, "seconds": seconds, "cpu_s": spent}
    return {**found, "mb": sizes} if memory else found


# --- the scripted model -------------------------------------------------------------------------


@contextlib.contextmanager
def upstream() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.environments_rollouts", "upstream"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


async def serve() -> None:
    from aiohttp import web

    ids = list(range(100, 124))
    logprobs = {"content": [{"token": "x", "logprob": -0.5} for _ in ids]}
    answer = {
        "id": "x", "object": "chat.completion", "created": 1, "model": "base",
        "prompt_token_ids": list(range(40)),
        "choices": [{
            "index": 0, "finish_reason": "stop", "logprobs": logprobs, "token_ids": ids,
            "message": {"role": "assistant", "content": "It was shipped on Monday, by post."},
        }],
        "usage": {"prompt_tokens": 40, "completion_tokens": 24, "total_tokens": 64},
    }  # fmt: skip
    body, events = json.dumps(answer).encode(), _events(answer)

    async def chat(request: web.Request) -> web.Response:
        asked = await request.json()
        await asyncio.sleep(DELAY_S)
        if asked.get("stream"):
            return web.Response(body=events, content_type="text/event-stream")
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    async for _ in _lines():
        pass


def _events(answer: dict[str, Any]) -> bytes:
    """The same answer as a stream; the peer's chat program asks for one."""
    (choice,) = answer["choices"]
    base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "base"}
    said = {key: choice[key] for key in ("index", "logprobs", "token_ids")}
    ids = {"prompt_token_ids": answer["prompt_token_ids"]}
    chunks = [
        {**base, "choices": [{**said, "delta": choice["message"], "finish_reason": None}], **ids},
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**base, "choices": [], "usage": answer["usage"]},
    ]
    lines = [json.dumps(chunk) for chunk in chunks] + ["[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


async def _lines() -> AsyncIterator[bytes]:
    """Of standard input, which ends when whoever started us does."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield line


def main() -> None:
    role, *given = sys.argv[1:]
    if role == "upstream":
        asyncio.run(serve())
        return
    url, in_flight, rollouts = given
    found = asyncio.run(play(url, int(in_flight), int(rollouts), memory=role == "memory"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Many tenants on one vLLM: 1, 4 and 16 adapters of one base model, each a project's, behind the
gateway with its capture on.

    python benchmarks/adapters.py [--model NAME] [--adapters 1 4 16] [--in-flight 16] [--answer 32]
                                  [--seconds 20] [--engine vllm] [--threads 1] [--json]

Throughput kept: tokens a second over all tenants, against those of one adapter, at the same number
of requests in work. Swap: until an adapter that the engine did not have has answered. Fairness: the
first tenant keeps four times as many requests waiting as all others together, and asks for answers
of three lengths where theirs have one; tokens that the largest tenant was served over the
smallest's, with the gateway's queue (`fair`), and with all that comes let through to the engine
(`open`), whose own queue is first come, first served. The load is closed: each client asks again as
soon as it was answered. Warm-up is not counted.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# This file's folder would hide packages of its neighbours' names.
sys.path[0] = str(ROOT)
from benchmarks.engines import cpu_of, machine, make_adapter, swap  # noqa: E402

_QUEUE = 10_000
PROMPT = "A parcel of mine came late and its box was broken; what shall I do with order {number}?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--in-flight", type=int, default=16, help="requests in work at the engine")
    parser.add_argument("--answer", type=int, default=32, help="tokens an answer")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--engine", default="vllm", choices=["vllm", "embedded"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="for logs that stay")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    from flywheel.settings import load, quiet_dependencies

    settings = load()
    quiet_dependencies(settings.at())
    model = settings.models / given.model
    model = model if model.is_dir() else Path(given.model).resolve()
    with contextlib.ExitStack() as stack:
        place = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = measure(model, place, given)
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


def measure(model: Path, place: Path, given: argparse.Namespace) -> dict[str, Any]:
    """One engine for all of it; a gateway of its own for each measurement."""
    from flywheel.home import Home
    from flywheel.serving_section import ServingSection
    from flywheel.settings import load
    from serving.engines.table import ENGINES

    most = max(given.adapters)
    folders = [make_adapter(model, place / f"adapter{n}", n) for n in range(most)]
    serving = ServingSection(
        engine=given.engine, context=512, max_concurrent=given.in_flight, adapters=most
    )
    settings = load().model_copy(update={"threads": given.threads})
    engine = ENGINES[given.engine](Home(place / "engine"), model, serving, settings, dict)
    engine.start()
    try:
        with engine.client() as client:
            swaps = [swap(client, f"{name_of(n)}-v1", one) for n, one in enumerate(folders)]
            loaded = len(client.models())
        runs = {count: kept(engine, place, count, given) for count in given.adapters}
        unfair = {
            way: fairness(engine, place, most, way, given) for way in ("fair", "open") if most > 1
        }
    finally:
        engine.stop()
    alone = runs[min(runs)]["tokens_s"]
    return {
        "machine": machine(given.threads),
        "model": model.name,
        "engine": given.engine,
        "models_loaded": loaded,
        "swap_s": {
            "first": round(swaps[0], 3),
            "median": round(sorted(swaps)[most // 2], 3),
            "slowest": round(max(swaps), 3),
        },
        "throughput": {
            str(count): {**one, "kept": round(one["tokens_s"] / alone, 3) if alone else None}
            for count, one in runs.items()
        },
        "fairness": unfair,
    }


def kept(engine: Any, place: Path, count: int, given: argparse.Namespace) -> dict[str, float]:
    """Every tenant asks for the same; together they fill the engine."""
    clients = [(n % count, [given.answer]) for n in range(given.in_flight)]
    spent, (served, seconds) = cpu_of(engine), run(engine, place, count, clients, "fair", given)
    tokens = sum(served.values())
    return {
        "tokens_s": round(tokens / seconds, 1),
        "tokens_engine_cpu_s": round(tokens / max(0.01, cpu_of(engine) - spent), 1),
        "largest_over_smallest": spread(served, count),
    }


def fairness(
    engine: Any, place: Path, count: int, way: str, given: argparse.Namespace
) -> dict[str, Any]:
    """One tenant floods; of each other one there is always a request that waits."""
    each = max(2, 2 * given.in_flight // count)
    modest = [(n, [given.answer]) for n in range(1, count) for _ in range(each)]
    lengths = [given.answer // 2, given.answer, 2 * given.answer]
    flood = [(0, lengths)] * (4 * len(modest))
    served, seconds = run(engine, place, count, [*flood, *modest], way, given)
    return {
        "largest_over_smallest": spread(served, count),
        "greedy_share": round(served[0] / max(1, sum(served.values())), 3),
        "tokens_s": round(sum(served.values()) / seconds, 1),
    }


def run(
    engine: Any,
    place: Path,
    count: int,
    clients: Sequence[tuple[int, list[int]]],
    way: str,
    given: argparse.Namespace,
) -> tuple[Counter[int], float]:
    """Tokens that each tenant was served, and in how many seconds."""
    with gateway(engine, place / f"{way}-{count}-{len(clients)}", count, way, given) as url:
        return asyncio.run(load_on(url, clients, given))


async def load_on(
    url: str, clients: Sequence[tuple[int, list[int]]], given: argparse.Namespace
) -> tuple[Counter[int], float]:
    import aiohttp

    served: Counter[int] = Counter()
    warm = time.monotonic() + given.seconds / 2
    end = warm + given.seconds

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        tenant, lengths = clients[number]
        asked = 0
        while time.monotonic() < end:
            asked += 1
            body = {
                "model": name_of(tenant),
                "messages": [
                    {"role": "user", "content": PROMPT.format(number=number * 1000 + asked)}
                ],
                "max_tokens": lengths[asked % len(lengths)],
                "ignore_eos": True,
                "seed": asked,
            }
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                said = await answer.json()
            if answer.status != 200:
                raise SystemExit(f"{answer.status}: {said}")
            if warm < time.monotonic() < end:
                served[tenant] += said["usage"]["total_tokens"]

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        tasks = [asyncio.create_task(one(session, n)) for n in range(len(clients))]
        await asyncio.wait(tasks, timeout=given.seconds * 1.5 + 1)
        for task in tasks:
            task.cancel()  # what still waits was let wait on purpose
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(done, Exception):
                raise done
    return served, given.seconds


@contextlib.contextmanager
def gateway(engine: Any, folder: Path, count: int, way: str, given: argparse.Namespace) -> Any:
    """In a thread of this process, with the journal in `folder`."""
    import socket
    import threading

    import uvicorn

    from flywheel.home import Home
    from flywheel.serving_section import LimitsSection
    from serving.gateway import Gateway
    from serving.keys import Keys
    from serving.limits import Limits
    from serving.state import EngineState
    from serving.terms import ProjectTerms, Terms

    class Waiting(Terms):
        def of(self, project: str) -> ProjectTerms:
            return ProjectTerms(limits=LimitsSection(queue=_QUEUE))

    home = Home(folder)
    folder.mkdir(parents=True)
    route_all(home, count)
    made = Gateway(
        home,
        frozenset(name_of(n) for n in range(count)),
        limits=Limits(concurrent=given.in_flight if way == "fair" else _QUEUE),
        keys=Keys(()),
        engine=EngineState("ready"),
        terms=Waiting(),
    )
    made.upstream.point_to(engine.url, engine.access.key)
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = uvicorn.Server(
        uvicorn.Config(made.application, log_level="warning", access_log=False, http="httptools")
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


def route_all(home: Any, count: int) -> None:
    from flywheel.lineage import Deployment
    from serving import routing

    projects = {}
    for n in range(count):
        name = name_of(n)
        serves = Deployment(
            name=f"{name}-v1", project=name, version=1, base_model="base", adapter=f"adapter{n}"
        )
        projects[name] = routing.ProjectRoute(project=name, base_model="base", champion=serves)
    routing.replace(home, routing.Routing(projects=projects))


def name_of(tenant: int) -> str:
    return f"tenant{tenant}"


def spread(served: Counter[int], count: int) -> float | None:
    """Tokens of the largest tenant over the smallest's; None = one was served nothing."""
    tokens = [served[n] for n in range(count)]
    return round(max(tokens) / min(tokens), 3) if min(tokens) else None


def show(found: dict[str, Any]) -> None:
    print(f"{found['model']} on {found['engine']}, {found['machine']}")
    swaps = found["swap_s"]
    print(
        f"an adapter has answered {swaps['median']} s after it was named (first {swaps['first']}, "
        f"slowest {swaps['slowest']}); {found['models_loaded']} models loaded"
    )
    for count, one in found["throughput"].items():
        print(
            f"{count:>3} adapters: {one['tokens_s']:8.1f} tokens/s, {one['kept']} of one's; "
            f"{one['tokens_engine_cpu_s']:.1f} a CPU second of the engine; largest over smallest "
            f"{one['largest_over_smallest']}"
        )
    for way, one in found["fairness"].items():
        print(
            f"one floods, {way}: largest over smallest {one['largest_over_smallest']}, its share "
            f"{one['greedy_share']:.0%}; {one['tokens_s']} tokens/s"
        )


if __name__ == "__main__":
    main()

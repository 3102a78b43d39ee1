"""The demo: a support inbox whose model learns from what the agents did, in two turns of the wheel.

Everything is real: requests by the official client through the gateway, feedback by HTTP, turns by
the flow that `flywheel turn` runs. Leaves a table, and a home to look around in.
"""

import importlib.util
import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from flywheel.errors import Busy
from flywheel.home import Home
from flywheel.progress import report
from flywheel.project import Project, load_project
from flywheel.settings import Settings

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "support"
FIRST, FRESH = 150, 90
"""Messages before the first turn, and after each turn."""
AT_ONCE = 16


class Traffic(NamedTuple):
    """What one wave of customers got."""

    right: list[bool]
    """Parallel to the messages: the answer ended by itself and is the truth."""
    tokens: list[int | None]
    """Completion tokens of each answer, as the engine said."""


class Stage(NamedTuple):
    deployment: str
    traffic: Traffic
    seconds: float


def prepare(settings: Settings) -> Home:
    """An empty home for the demo, inside the configured one; the last demo's is removed.

    Raises:
        Busy: a server still runs in it.
    """
    from serving.server import running

    home = Home(settings.at().root / "demo")
    server = running(home)
    if server:
        raise Busy(f"the last demo's server still runs (pid {server.pid}): stop it first")
    shutil.rmtree(home.root, ignore_errors=True)
    home.prefect.mkdir(parents=True)
    os.environ["FLYWHEEL_HOME"] = str(home.root)
    return home


def run(home: Home, settings: Settings, turns: int = 2) -> dict[str, Any]:
    """The whole demo; returns {"turns": [report …], "stages": [fresh traffic …]}."""
    from flows.turn import turn
    from serving.server import ensure

    project, customers = load_project(EXAMPLE), script()
    with ensure(home, project, settings) as server:
        waves = [customers.messages(FIRST if n == 0 else FRESH, seed=n) for n in range(turns + 1)]
        stages = [converse(server.url, project, "customers write in", waves[0])]
        reports = []
        for number in range(turns):
            tell(server.url, customers.filed(waves[number]))
            started = time.monotonic()
            done: Any = turn(str(EXAMPLE))
            reports.append({**done, "seconds": round(time.monotonic() - started, 1)})
            title = f"fresh customers, turn {number + 1}"
            stages.append(converse(server.url, project, title, waves[number + 1]))
    return {"turns": reports, "fresh": [summary(stage) for stage in stages]}


def script() -> ModuleType:
    """examples/support/customers.py: what a company would bring."""
    spec = importlib.util.spec_from_file_location("support_customers", EXAMPLE / "customers.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def converse(url: str, project: Project, title: str, messages: list[Any]) -> Stage:
    """Sends the customers' messages through the gateway, some at once, as a company's code does."""
    started, prompt = time.monotonic(), script().prompt

    def send(message: Any) -> Any:
        return ask(client, project.name, prompt(message.text), message)

    with client_of(url) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        answers = []
        for answer in pool.map(send, messages):
            answers.append(answer)
            report(title, len(answers), len(messages))
    right = [
        answer.choices[0].finish_reason == "stop" and says(answer, message.truth)
        for answer, message in zip(answers, messages, strict=True)
    ]
    tokens = [answer.usage.completion_tokens if answer.usage else None for answer in answers]
    name = answers[-1].model
    return Stage(name, Traffic(right, tokens), time.monotonic() - started)


@contextmanager
def client_of(url: str) -> Iterator[Any]:
    from openai import DefaultHttpxClient, OpenAI

    with DefaultHttpxClient(trust_env=False) as http:
        yield OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http, timeout=300)


def ask(client: Any, model: str, prompt: list[Any], message: Any) -> Any:
    return client.chat.completions.create(
        model=model,
        messages=prompt,
        max_tokens=40,
        temperature=0.7,
        user=message.user,
        metadata={"conversation_id": message.conversation},
    )


def says(answer: Any, truth: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(answer.choices[0].message.content) == truth)
    except (ValueError, TypeError):
        return False


def tell(url: str, filed: list[Any]) -> None:
    """Posts what the agents did, as their ticket system would."""
    import httpx

    with httpx.Client(trust_env=False, timeout=30) as client:
        for number, one in enumerate(filed):
            report("agents file tickets", number + 1, len(filed))
            client.post(
                f"{url}/v1/feedback",
                json={
                    "conversation_id": one.conversation,
                    "name": "filed",
                    "kind": "demonstration",
                    "value": one.value,
                    "by": one.by,
                },
            ).raise_for_status()


def summary(stage: Stage) -> dict[str, Any]:
    """Means of one wave, with the interval of its share of right answers."""
    from environments.statistics import mean_interval

    interval = mean_interval([float(one) for one in stage.traffic.right])
    known = [count for count in stage.traffic.tokens if count is not None]
    return {
        "deployment": stage.deployment,
        "messages": len(stage.traffic.right),
        "reward": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "tokens": sum(known) / len(known) if known else None,
        "seconds": round(stage.seconds, 1),
    }

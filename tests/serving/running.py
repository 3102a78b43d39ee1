"""A gateway that listens, in a thread of the test, in front of a scripted upstream."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from flywheel.home import Home
from flywheel.project import Project
from flywheel.records import Feedback, Trace
from serving import routing
from serving.gateway import Gateway
from serving.guarded import Bounds, guarded
from serving.keys import Keys
from serving.limits import Limits
from serving.state import EngineState
from serving.terms import Terms
from storage import envelope, journal


@dataclass
class Running:
    home: Home
    url: str
    gateway: Gateway

    def traces(self) -> list[Trace]:
        return [record for record in journalled(self.home) if isinstance(record, Trace)]

    def last(self) -> Any:
        """The span of the last answer."""
        return self.traces()[-1].spans[0]

    def champion(self, provider: str) -> None:
        """Lets a provider's model answer for the project."""
        now = routing.read(self.home)
        champion = routing.external_deployment("support", provider, "base")
        new = msgspec.structs.replace(now.projects["support"], champion=champion)
        routing.replace(self.home, msgspec.structs.replace(now, projects={"support": new}))

    def feedback(self) -> list[Feedback]:
        return [record for record in journalled(self.home) if isinstance(record, Feedback)]


def terms(**sections: Any) -> Terms:
    """As the project's file would say it: `terms(serving={"first": "openai"})`."""
    project = {"name": "support", "model": {"base": "tiny"}, "environment": {"path": "x.py:X"}}
    return Terms([Project.model_validate({**project, **sections})])


def journalled(home: Home) -> list[Any]:
    tails = [journal.read(path, 0, last=True) for path in journal.files(home)]
    assert not any(tail.torn for tail in tails)
    return [envelope.decode(line)[1] for tail in tails for _, line in tail.lines]


def route(home: Home, *, champion: int = 0, project: str = "support") -> None:
    """Puts `<project>-v<champion>` into the routing file."""
    deployment = routing.base_deployment(project, "base")
    if champion:
        deployment = routing.Deployment(
            name=f"{project}-v{champion}",
            project=project,
            version=champion,
            base_model="base",
            adapter=f"runs/{champion}/adapter",
        )
    now = routing.read(home)
    before = now.projects.get(project)
    projects = {
        **now.projects,
        project: routing.ProjectRoute(
            project=project,
            base_model="base",
            champion=deployment,
            previous=before.champion if before else None,
        ),
    }
    routing.replace(home, routing.Routing(version=now.version, projects=projects))


@contextlib.contextmanager
def running(
    folder: Path,
    engine_url: str,
    *,
    limits: Limits | None = None,
    keys: Keys | None = None,
    engine: EngineState | None = None,
    projects: frozenset[str] = frozenset({"support"}),
    bounds: Bounds | None = None,
    terms: Terms | None = None,
) -> Iterator[Running]:
    home = Home(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not home.routing.exists():
        route(home)
    gateway = Gateway(
        home,
        projects,
        limits=limits or Limits(),
        keys=keys or Keys(()),
        engine=engine or EngineState("ready"),
        terms=terms,
    )
    gateway.upstream.point_to(engine_url)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()  # a test that is faster than the thread waits, and is not refused
    config = uvicorn.Config(
        gateway.application,
        http=guarded(bounds),
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    try:
        yield Running(home, f"http://127.0.0.1:{listening.getsockname()[1]}", gateway)
    finally:
        server.should_exit = True
        thread.join(20)


def body(text: str = "where is my order?", **more: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": "support", "messages": messages, **more}).encode()

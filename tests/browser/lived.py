"""A home that was lived in, with its server and its dashboard running, for tests in a browser."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from flywheel.home import Home
from serving.engines.client import EngineClient
from serving.promotion import rollback
from serving.registry import Registry
from serving.routing import read
from serving.server import running
from tests.app.calling import FLYWHEEL, surroundings
from tests.promoted import Promoted

PEOPLE = """
default = "viewer"
[people]
ada = "promoter"
rita = "reviewer"
"""


class Lived(NamedTuple):
    home: Home
    project: Path
    url: str
    """Of the dashboard."""
    gateway: str

    def page(self, name: str, person: str = "ada") -> str:
        """A page's address, as that person."""
        return f"{self.url}/{name}?as={person}"

    def answered_by(self) -> str:
        """The deployment that answers a request now."""
        asked = {
            "model": "sorting",
            "messages": [
                {"role": "system", "content": "Sort the digits."},
                {"role": "user", "content": "3 1 2"},
            ],
            "max_tokens": 8,
        }
        url = f"{self.gateway}/v1/chat/completions"
        answer = httpx.post(url, json=asked, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["model"])

    def made_champion(self, name: str) -> None:
        """As it was before: a rollback, if another one answers now."""
        if read(self.home).projects["sorting"].champion.name != name:
            server = running(self.home)
            assert server
            with EngineClient(server.engine_url) as engine:
                rollback(
                    self.home,
                    "sorting",
                    engine=engine,
                    registry=Registry(self.home),
                    by="test",
                    reason="set up",
                )
        assert read(self.home).projects["sorting"].champion.name == name


@contextlib.contextmanager
def lived(promoted: Promoted, place: Path) -> Iterator[Lived]:
    """A copy of `promoted` that serves, in `place`."""
    assert promoted.turned.code == 0, promoted.turned
    shutil.copytree(promoted.home, place / "home")
    home = Home(place / "home")
    (home.root / "people.toml").write_text(PEOPLE)
    with (
        command(home, "serve", str(promoted.project), "--port", "0") as server,
        command(home, "dashboard", str(promoted.project), "--port", "0") as dashboard,
    ):
        yield Lived(home, promoted.project, dashboard["url"], server["url"])


@contextlib.contextmanager
def command(home: Home, *arguments: str) -> Iterator[dict[str, Any]]:
    """A `flywheel` command that runs until the block ends; what it said when it was ready."""
    log = home.logs / f"test-{arguments[0]}.log"
    log.parent.mkdir(exist_ok=True)
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*FLYWHEEL, *arguments, "--json"],
            env=surroundings(home.root),
            cwd=home.root.parent,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert '"url"' in line, line + log.read_text()
            yield json.loads(line)
        finally:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()

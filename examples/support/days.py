"""Three days of the support desk, in minutes: what runs when nobody types a command.

The real server, worker and gateway; customers, agents and ada, who is responsible. Day 1: traffic
is graded by the schedule and starts a turn, which is promoted. Day 2: ada asks in MLflow for a
model that she made herself; the gate refuses it, and in the evening she rolls back. Day 3: new
traffic, a new turn, promoted. Leaves a table, and a home to look around in.

    python examples/support/days.py HOME [--desk FOLDER] [--messages 110] [--json]

A desk is a project with a customers.py: who writes, what is sent, what agents file, what is right.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx

HERE = Path(__file__).resolve().parent
COMMAND = str(Path(sys.executable).with_name("flywheel"))
SCHEDULE = """
[schedule]                       # a day of minutes: the desk grades all the time
grade = 45
registry = 45
curate = "off"
enough_graded = {enough}         # as much as one day brings
"""
WAIT_S = 1500.0


class Desk:
    """One home, its project, and the URL that customers' programs write to."""

    def __init__(self, root: Path, name: str, url: str) -> None:
        self.root, self.name, self.url = root, name, url
        self.seen: set[str] = set()
        """Decisions that were told already."""

    def decided(self) -> list[Any]:
        """What the ledger says of champions since the last look, oldest first."""
        from flywheel.home import Home
        from storage.queries import records

        found = [
            one
            for one in records(Home(self.root), "decision", project=self.name)
            if one.outcome in ("promoted", "refused", "rolled_back") and one.id not in self.seen
        ]
        self.seen |= {one.id for one in found}
        return found

    def until_decided(self, what: str) -> Any:
        begun = time.monotonic()
        while time.monotonic() - begun < WAIT_S:
            for one in self.decided():
                tell(f"{one.outcome} by the {one.gate} gate: {one.reason}")
                return one
            tell(f"{what}: {time.monotonic() - begun:.0f} s", again=True)
            time.sleep(3)
        raise SystemExit(f"{what}: nothing was decided within {WAIT_S:.0f} s, see {self.root}/logs")


def three_days(home: Path, folder: Path, count: int) -> list[dict[str, Any]]:
    """What each day brought to the desk in `folder`."""
    os.environ["FLYWHEEL_HOME"] = str(home)
    customers, days = script(folder), []
    waves = [customers.messages(count, seed=day) for day in (1, 3)]
    enough = min(len({one.conversation for one in customers.filed(wave)}) for wave in waves)
    project, name = copied(home, folder, enough)
    with running("prefect", "--port", "0"), running("serve", str(project), "--port", "0") as serves:
        flywheel("deploy", str(project))
        desk = Desk(home, name, serves["url"])

        tell("day 1: customers write in, agents file")
        days.append(day(desk, customers, waves[0][:]))

        tell("day 2: ada asks in MLflow for a model of her own")
        ask_for(hand_made(home, name), home, name)
        refused = desk.until_decided("the gates look at it")
        days.append({"decision": refused.outcome, "gate": refused.gate, "reason": refused.reason})
        tell("the evening of day 2: ada takes the first model back")
        flywheel("rollback", str(project), "--by", "ada", "--reason", "partners complain")
        days.append({"decision": desk.until_decided("rollback").outcome})

        tell("day 3: customers write in, agents file")
        days.append(day(desk, customers, waves[1][:]))
    return days


def day(desk: Desk, customers: ModuleType, wave: list[Any]) -> dict[str, Any]:
    right = converse(desk, customers, wave)
    with httpx.Client(trust_env=False, timeout=30) as client:
        said = [
            {
                "conversation_id": one.conversation,
                "name": "filed",
                "kind": "demonstration",
                "value": one.value,
                "by": one.by,
            }
            for one in customers.filed(wave)
        ]
        client.post(f"{desk.url}/v1/feedback", json=said).raise_for_status()
    found = desk.until_decided("the schedule grades, and a turn starts when there is enough")
    return {"right": right, "decision": found.outcome, "reason": found.reason}


def converse(desk: Desk, customers: ModuleType, wave: list[Any]) -> float:
    """Sends the customers' messages, some at once; returns the share that was answered rightly."""
    from openai import DefaultHttpxClient, OpenAI

    with DefaultHttpxClient(trust_env=False) as http, ThreadPoolExecutor(16) as pool:
        client = OpenAI(base_url=f"{desk.url}/v1", api_key="none", http_client=http, timeout=600)

        def ask(message: Any) -> bool:
            answer = client.chat.completions.create(
                model=desk.name,
                messages=customers.prompt(message.text),
                max_tokens=40,
                temperature=0.7,
                user=message.user,
                metadata={"conversation_id": message.conversation},
            )
            return bool(customers.right(message, answer.choices[0].message.content or ""))

        return sum(pool.map(ask, wave)) / len(wave)


def hand_made(home: Path, name: str) -> Path:
    """An adapter that ada made outside: the champion's files with all that it learned taken out."""
    from safetensors.numpy import load_file, save_file

    from flywheel.home import Home
    from serving.routing import read

    champion = read(Home(home)).projects[name].champion
    assert champion.adapter is not None
    folder = home / "from-ada"
    shutil.copytree(home / champion.adapter, folder)
    weights = folder / "adapter_model.safetensors"
    save_file({name: tensor * 0 for name, tensor in load_file(weights).items()}, weights)
    return folder


def ask_for(adapter: Path, home: Path, name: str) -> None:
    """As any MLflow user does: registers a version and moves the alias `challenger` to it."""
    from mlflow import MlflowClient

    from flywheel.home import Home
    from serving.registry import tracking_uri

    uri = tracking_uri(Home(home))
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    version = client.create_model_version(name, source=adapter.as_uri())
    client.set_registered_model_alias(name, "challenger", version.version)


def copied(home: Path, desk: Path, enough: int) -> tuple[Path, str]:
    """The desk as a project of its own, with a compressed schedule and fewer problems; its name."""
    from flywheel.project import load_project

    folder = home / "desk"
    shutil.copytree(desk, folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "flywheel.toml"
    text = file.read_text()
    text = text.replace("max_train = 64", "max_train = 40").replace(
        "max_heldout = 48", "max_heldout = 32"
    )
    file.write_text(text + SCHEDULE.format(enough=enough))
    return folder, load_project(folder).name


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[dict[str, Any]]:
    """A command that stays until the block ends; yields what it says once it answers."""
    with subprocess.Popen(
        [COMMAND, *arguments, "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            said = process.stdout.readline()
            if not said:
                raise SystemExit(f"flywheel {' '.join(arguments)} ended with {process.wait()}")
            yield json.loads(said)
        finally:
            process.terminate()


def flywheel(*arguments: str) -> Any:
    said = subprocess.run([COMMAND, *arguments, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(said.stdout)


def script(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("desk_customers", folder / "customers.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tell(text: str, again: bool = False) -> None:
    if not again or sys.stderr.isatty():
        print(text, file=sys.stderr, end="\r" if again else "\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("home", type=Path, help="A folder that is not there yet.")
    parser.add_argument("--desk", type=Path, default=HERE, help="By default the support inbox.")
    parser.add_argument("--messages", type=int, default=110, help="Of a day.")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.home.mkdir(parents=True)
    found = three_days(given.home.resolve(), given.desk, given.messages)
    if given.json:
        print(json.dumps({"days": found}))
        return
    for number, one in enumerate(found, 1):
        print(number, one["decision"], one.get("reason", ""))


if __name__ == "__main__":
    main()

"""The turn itself: what it starts from, its id, and that one project has one turn at a time.

Enters a project; leaves a Turn that every step takes. A turn that was killed is found again as long
as its project, champion and configuration are what they were, whatever arrived since.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from filelock import FileLock, Timeout

from flywheel import durable
from flywheel.errors import Busy, EngineError, Refused
from flywheel.home import Home
from flywheel.ids import digest
from flywheel.lineage import Deployment
from flywheel.project import Project, base_folder, load_project
from flywheel.records import Record
from flywheel.settings import Settings, load
from tasks.judges import standings_of

if TYPE_CHECKING:
    from environments.define import Environment
    from serving.engines.client import EngineClient


_BACK_S = {"embedded": 180.0, "vllm": 900.0}
"""How long an engine that died may need to be back."""


class UnderWay(Busy):
    """The project's turn is held by another process."""


class Turn(Record, frozen=True, kw_only=True):
    run_id: str
    """Hash of project, champion, configuration, environment and data."""
    project: str
    folder: str
    """The project's folder."""
    start: Deployment
    """The champion that this turn starts from, whatever is promoted or rolled back meanwhile."""
    configuration: str
    """Digest of the project's file, its environment, and what its judge may do."""
    sequence: int
    """The store's ledger sequence when it started: later data waits for the next turn."""
    snapshot: str
    """Digest of the production traces and feedback up to then."""

    at: int | None = None
    """Nanoseconds, when it was opened: what must be gone by then it does not see. None = of an
    earlier version: it sees all."""

    repeated: bool = False
    """The same turn has ended before: nothing has come or changed since."""
    looked: bool = False
    """Only looked at: it is not opened, and leaves nothing among the runs."""
    every: bool = False
    """Its rollouts are all that the project's turns have left, rather than its own."""
    graded_until: int | None = None
    """The ledger's sequence after which no grade is seen. None = all are."""
    sections: dict[str, Any] | None = None
    """What stands in place of sections of the project's file: a product of another kind than its
    turns make, or the sections of an earlier day. None = the file's own."""

    @property
    def champion(self) -> str:
        return self.start.name


def settings() -> Settings:
    return load()


def home() -> Home:
    return load().at()


def home_id() -> str:
    """What tells this home from any other, and goes with it where it is moved to."""
    from storage.home_id import home_id

    return home_id(home())


def project_of(turn: Turn) -> Project:
    return load_project(Path(turn.folder), turn.sections)


@contextlib.contextmanager
def only_turn(project: Project) -> Iterator[None]:
    """Holds the project's turn for the time of the block; a second one is told at once.

    Raises:
        UnderWay: another process turns this project.
    """
    place = home().locks
    place.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place / f"turn-{project.name}.lock", blocking=False):
            drop_torn_results()
            yield
    except Timeout as error:
        raise UnderWay(
            f"a turn of {project.name} is already under way: wait for it, or see `flywheel status`"
        ) from error


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
    """Holds the project's turn for steps that need no model."""
    with only_turn(load_project(Path(folder))):
        yield


@contextlib.contextmanager
def serving(*folders: str) -> Iterator[None]:
    """Holds the projects' turns, with a server answering for them: the recorded one, else one for
    the time of the block. Several projects share its engine.

    Raises:
        UsageError: several projects that do not stand on one base model.
    """
    from serving.server import ensure, one_base, running

    projects = [load_project(Path(folder)) for folder in folders]
    one_base(projects, settings())
    server = running(home())
    served = [one for one in projects if server is not None and one.name in server.projects]
    with contextlib.ExitStack() as held:
        for one in projects:
            held.enter_context(only_turn(one))
        held.enter_context(ensure(home(), (served or projects)[0], settings()))
        yield


@contextlib.contextmanager
def served_now(folder: str) -> Iterator[None]:
    """With a server that answers for the project, and without its turn: for what only looks."""
    from serving.server import ensure

    with ensure(home(), load_project(Path(folder)), settings()):
        yield


def open_turn(folder: str, ingested: dict[str, Any], *, fresh: bool = False) -> Turn:
    """The turn under way, or a new one over everything committed by now.

    Args:
        folder: the project's.
        ingested: the committer's counts, kept with a new turn.
        fresh: a turn under way that has trained nothing yet gives way to one over what came since;
            one that can only say again what it said does so anyway.
    """
    project = load_project(Path(folder))
    champion, configuration = champion_of(project), configuration_of(project)
    under_way = turn_under_way(home(), project.name)
    if under_way and under_way.configuration == configuration:
        promoted_here = champion.run_id == under_way.run_id
        trained = (run_folder(under_way) / "training.json").exists()
        given_up = (fresh and not trained) or said_all(under_way)
        if not given_up and (promoted_here or under_way.champion == champion.name):
            return under_way
    turn = new_turn(project, champion, configuration)
    if under_way and under_way.run_id == turn.run_id:
        return under_way
    if (run_folder(turn) / "turn.md").exists():
        turn = msgspec.structs.replace(turn, repeated=True)
    note(turn, "ingest", ingested)
    durable.write(home().turns / f"{project.name}.json", msgspec.json.encode(turn))
    return turn


def said_all(turn: Turn) -> bool:
    """Whether going on with it can only repeat a verdict: it had ended, or its data was refused."""
    if turn.repeated:
        return True
    try:
        dataset = json.loads((run_folder(turn) / "dataset.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return dataset.get("passed") is False


def turn_to_come(folder: str) -> Turn:
    """The turn that would be opened now, for steps that must not open one: a turn that opens works
    from its own snapshot, and what is done every hour must not fix it.
    """
    project = load_project(Path(folder))
    turn = new_turn(project, champion_of(project), configuration_of(project))
    return msgspec.structs.replace(turn, looked=True)


def configuration_of(project: Project) -> str:
    """Digest of all that decides what a turn does: the project's file, its environment, and what
    its judge may do."""
    parts = [project.digest(), environment_of(project).digest]
    if project.judge is not None:
        parts.append(digest(sorted(standings_of(project, home()).items())))
    return digest(*parts)


def new_turn(project: Project, champion: Deployment, configuration: str) -> Turn:
    from storage.snapshots import snapshot

    at = time.time_ns()
    seen = snapshot(home(), project.traffic, at=at)
    return Turn(
        run_id=digest(
            project.name, champion.name, champion.checkpoint_id, configuration, seen.digest
        ),
        project=project.name,
        folder=str(project.folder),
        start=champion,
        configuration=configuration,
        sequence=seen.sequence,
        snapshot=seen.digest,
        at=at,
    )


def champion_of(project: Project) -> Deployment:
    """What answers for the project now: by the routing file, else who does so first."""
    from serving.routing import first_deployment, read

    route = read(home()).projects.get(project.name)
    base = str(base_folder(project, settings().models))
    return route.champion if route else first_deployment(project, base)


def drop_torn_results() -> None:
    """Removes kept results that a kill left half written: Prefect writes them in place."""
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH

    for path in Path(PREFECT_LOCAL_STORAGE_PATH.value()).glob("*"):
        try:
            json.loads(path.read_bytes())
        except (ValueError, OSError):
            path.unlink(missing_ok=True)


def turn_under_way(place: Home, project: str) -> Turn | None:
    try:
        return msgspec.json.decode((place.turns / f"{project}.json").read_bytes(), type=Turn)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def close_turn(turn: Turn) -> None:
    """Forgets that the turn is under way; what it made stays."""
    (home().turns / f"{turn.project}.json").unlink(missing_ok=True)


@contextlib.contextmanager
def closed_if_refused(turn: Turn) -> Iterator[None]:
    """A refusal within the block ends the turn: left open it would hide what comes after it."""
    try:
        yield
    except Refused:
        close_turn(turn)
        raise


def environment_of(project: Project) -> "Environment":
    from environments.load import load_environment

    section = project.environment
    return load_environment(section.path, project.folder, section.config)


def engine() -> "EngineClient":
    """The engine of the server that runs in this home, once it answers: one that died meanwhile
    is being started again.

    Raises:
        EngineError: none runs, or it does not come back.
    """
    from serving.engines.client import EngineClient
    from serving.server import running

    server = running(home())
    if server is None:
        raise EngineError("no server runs in this home any more: run the turn again")
    client = EngineClient(server.engine_url, access=server.access)
    client.wait_ready(
        _BACK_S[server.access.kind], alive=lambda: None if running(home()) else "its server is gone"
    )
    return client


def run_folder(turn: Turn) -> Path:
    folder = home().runs / turn.run_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def note(turn: Turn, name: str, value: object) -> None:
    """Keeps a step's report beside the run, for people and for `flywheel status`."""
    text = json.dumps(value, indent=2, sort_keys=True, default=str)
    durable.write(run_folder(turn) / f"{name}.json", text.encode())

"""The routing file: which deployment answers for which project. It is the authority.

Readers read it whole, without a lock: it is replaced atomically. Writers say which version they
saw and lose if another was faster. All else (MLflow's aliases, the ledger) follows this file.
"""

from typing import Annotated

import msgspec

from flywheel import durable
from flywheel.errors import Busy, CorruptFile
from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.project import Project
from flywheel.records import Record
from storage.locks import held

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class ProjectRoute(Record, frozen=True, kw_only=True):
    project: str
    base_model: str
    """Path or name of the base model, which the engine serves as `base`."""
    champion: Deployment
    previous: Deployment | None = None
    """Stays loaded, so that rolling back is instant. None = nothing was replaced yet."""
    rolled_back: bool = False
    """Whether a rollback took `previous` out: it stands in for nobody then."""
    challenger: Deployment | None = None
    """Is compared with the champion; None = none runs."""
    share: Share = 0.0
    """Of the requests to the project that the challenger answers: its canary. 0 to below 1."""
    since: int | None = None
    """When its canary began, nanoseconds; another share does not begin it anew. None = none runs,
    or one that nobody recorded."""
    shadow: Deployment | None = None
    """Is asked a copy of some requests; nobody sees what it answers but the record."""
    shadow_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    fallbacks: tuple[str, ...] = ()
    """Who answers where the chosen one fails, in order, by name as in [serving] fallbacks; () =
    those."""


class Routing(Record, frozen=True, kw_only=True):
    version: Count = 0
    """Grows by one with each replacement; 0 = there is no file yet."""
    projects: dict[str, ProjectRoute] = msgspec.field(default_factory=dict)


def base_deployment(project: str, base_model: str) -> Deployment:
    """Deployment 0 of a project: the base model as it is."""
    return Deployment(name=f"{project}-v0", project=project, version=0, base_model=base_model)


def external_deployment(project: str, provider: str, base_model: str) -> Deployment:
    """A provider's model, as what answers for a project. It has no weights here."""
    return Deployment(
        name=f"{project}-{provider}",
        project=project,
        version=0,
        base_model=base_model,
        kind="external",
        provider=provider,
    )


def first_deployment(project: Project, base_model: str) -> Deployment:
    """Who answers until the first promotion."""
    if project.serving.first is not None:
        return external_deployment(project.name, project.serving.first, base_model)
    return base_deployment(project.name, base_model)


def still_first(route: ProjectRoute | None, first: Deployment) -> bool:
    """Whether `first` is yet to be put there: nothing was promoted, rolled back or tried out, and
    another one answers, or one of another base model, or none."""
    if route is None:
        return True
    untouched = route.champion.version == 0 and route.previous is None and route.challenger is None
    now = route.champion
    return untouched and (now.name, now.base_model) != (first.name, first.base_model)


def is_external(deployment: Deployment) -> bool:
    """Whether no engine of ours holds it."""
    return deployment.kind == "external"


def standing(route: ProjectRoute) -> tuple[Deployment, ...]:
    """All deployments of the route, each once: champion first, then previous, challenger and
    shadow. The engine holds those of them that are not external."""
    held = (route.champion, route.previous, route.challenger, route.shadow)
    return tuple({one.name: one for one in held if one is not None}.values())


def canary_of(home: Home, project: str) -> tuple[Deployment, float] | None:
    """The challenger that answers a share, and its share; None = none does."""
    route = read(home).projects.get(project)
    if route is None or route.challenger is None or not route.share:
        return None
    return route.challenger, route.share


def served_as(deployment: Deployment) -> str:
    """The model's name at the engine: `base`, or the adapter's, which is the deployment's."""
    return "base" if deployment.adapter is None else deployment.name


def read(home: Home) -> Routing:
    """What serves now.

    Raises:
        CorruptFile: the file is not one of ours, or holds what none of ours does; nothing is
            guessed.
    """
    try:
        found = msgspec.json.decode(home.routing.read_bytes(), type=Routing)
        _check(found)
        return found
    except FileNotFoundError:
        return Routing()
    except (OSError, msgspec.DecodeError, _Odd) as error:
        raise CorruptFile(
            f"{home.routing} is not a routing file: {error}. Move it away and run `flywheel serve`:"
            " the newest promotion in the ledger says what it held"
        ) from error


class _Odd(Exception):
    """Something that no writer of ours puts into the file."""


def _check(found: Routing) -> None:
    for project, route in found.projects.items():
        if route.project != project:
            raise _Odd(f"projects.{project} is the route of {route.project}")
        for one in standing(route):
            if one.project != project:
                raise _Odd(f"{one.name}, which projects.{project} names, is of {one.project}")
            if not 0 <= one.version <= 2**53:
                raise _Odd(f"{one.name} has the version {one.version}")
        if route.share and route.challenger is None:
            raise _Odd(f"projects.{project} gives a share to a challenger that it does not have")


def replace(home: Home, routing: Routing, *, wait_s: float = 10.0) -> Routing:
    """Writes `routing` over the file whose version it was derived from; returns it as written.

    Raises:
        Busy: the file has moved on since `routing` was read; read again and decide again.
    """
    lock = home.locks / "routing.lock"
    with held(lock, wait_s=wait_s, busy=f"{lock} has been held for over {wait_s:g} s"):
        now = read(home).version
        if now != routing.version:
            raise Busy(
                f"{home.routing} is at version {now}, this change was made for "
                f"{routing.version}: somebody else replaced it; read it again"
            )
        written = msgspec.structs.replace(routing, version=now + 1)
        durable.write(home.routing, msgspec.json.format(msgspec.json.encode(written)) + b"\n")
        return written

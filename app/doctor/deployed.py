"""What is deployed: the routing file, the weights it names, and MLflow and the ledger beside it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.doctor.finding import Case, Finding, ok, warning, wrong
from flywheel.errors import CorruptFile, FlywheelError
from flywheel.lineage import Deployment
from serving.routing import ProjectRoute, read
from serving.verify import check_files

CHANGES = ("promoted", "rolled_back", "reconciled")
"""Outcomes that say who is champion."""


def routing(case: Case) -> Iterator[Finding]:
    """The authority itself, and the files that it names."""
    try:
        now = read(case.home)
    except (CorruptFile, OSError) as error:
        yield wrong(
            f"{case.home.routing} cannot be read: {error}",
            f"mv {case.home.routing} {case.home.routing}.broken; flywheel serve PROJECT: the base "
            "model serves, and flywheel promote or rollback brings back what did",
        )
        return
    if not now.projects:
        yield ok("nothing is deployed yet: flywheel serve PROJECT serves its base model")
    for route in now.projects.values():
        yield from _weights(case, route)


def registry(case: Case) -> Iterator[Finding]:
    """MLflow's database, and its aliases and the ledger against the routing file."""
    from storage.sqlite_file import tables

    file = case.home.mlflow / "mlflow.db"
    if not file.exists():
        yield ok("MLflow has nothing yet: the first turn that trains registers there")
        return
    try:
        found = tables(file)
    except (OSError, ValueError) as error:
        yield wrong(
            f"MLflow's database {file} cannot be used: {error}",
            f"put a copy back, or mv {file} {file}.broken: MLflow begins anew, what serves stays",
        )
        return
    if "registered_models" not in found:
        yield ok("MLflow's database is empty")
        return
    yield ok("MLflow's database opens")
    yield from _against(case)


def _weights(case: Case, route: ProjectRoute) -> Iterator[Finding]:
    base = Path(route.base_model)
    if base.is_absolute() and not base.is_dir():
        yield wrong(
            f"{route.project}: the base model of what serves, {base}, is gone",
            f"bring it back there (for the demo's: make model), or link it: ln -s WHERE {base}",
        )
    roles = {
        "champion": route.champion,
        "previous": route.previous,
        "challenger": route.challenger,
    }
    for role, deployment in roles.items():
        if deployment is None or deployment.adapter is None:
            continue
        try:
            check_files(case.home, deployment)
        except CorruptFile as error:
            yield _damaged(role, deployment, error)
        else:
            yield ok(f"{deployment.name} ({role}): its weights are what was trained")
    if route.champion.adapter is None:
        provider = route.champion.provider
        what = f"the provider {provider}'s model" if provider else "the base model"
        yield ok(f"{route.champion.name} (champion): {what}")


def _damaged(role: str, deployment: Deployment, error: CorruptFile) -> Finding:
    says = f"{deployment.name} ({role}): {error}"
    copy = f"put a copy of {deployment.adapter} back"
    if role == "champion":
        return wrong(says, f"{copy}, or flywheel rollback of {deployment.project}")
    if role == "previous":
        return warning(says, f"{copy}: until then there is nothing to roll back to")
    return warning(says, f"{copy}, or take it out: flywheel release --end")


def _against(case: Case) -> Iterator[Finding]:
    from serving.intents import aliases_of
    from storage.registered import registered

    try:
        routes = read(case.home).projects
    except (CorruptFile, OSError):
        return  # the check of the routing tells
    for project, route in routes.items():
        there = registered(case.home, project)
        if there.unknown:
            yield wrong(there.unknown, "wait, if it is locked; else see MLflow's own logs")
            return
        if case.deep:
            yield from _by_mlflow(case, project, there.aliases)
        wanted = aliases_of(route)
        other = {
            name: there.aliases.get(name)
            for name, want in wanted.items()
            if there.aliases.get(name) != want
        }
        if other:
            yield warning(
                f"{project}: MLflow's aliases say {_told(other)}; what serves is "
                f"{_told({name: wanted[name] for name in other})}",
                "the next start of flywheel serve, promotion or rollback sets them",
            )
        else:
            yield ok(f"{project}: MLflow's aliases are what serves")
        yield from _files(case, project, there.places)
        yield from _ledger(case, route)


def _files(case: Case, project: str, places: Mapping[str, str]) -> Iterator[Finding]:
    """MLflow names its artifacts by where they lie: a home that was moved leaves them behind."""
    gone = {
        version: path
        for version, address in places.items()
        if address.startswith("file:")
        and not any((path := Path(unquote(urlsplit(address).path))).glob("*"))
    }
    if gone:
        version, path = next(iter(gone.items()))
        yield warning(
            f"{project}: the files of {len(gone)} versions in MLflow are gone, of version "
            f"{version} from {path}",
            f"put a copy back there (was the home moved? mlflow/artifacts of {case.home.root} has "
            "them); what serves has its own",
        )


def _by_mlflow(case: Case, project: str, read_as: dict[str, str]) -> Iterator[Finding]:
    """What MLflow itself says, which takes seconds to begin."""
    from serving.registry import Registry

    try:
        said = Registry(case.home).aliases(project)
    except FlywheelError as error:
        yield wrong(str(error), "its database may be another version's: make setup")
        return
    if said == read_as:
        yield ok(f"{project}: MLflow itself says the same as its file")
    else:
        yield wrong(f"{project}: MLflow says {said}, its file {read_as}", "make setup")


def _ledger(case: Case, route: ProjectRoute) -> Iterator[Finding]:
    from storage.inbox import Inbox
    from storage.queries import records

    if Inbox(case.home).pending():
        yield ok(f"{route.project}: the ledger is compared once the inbox is taken in")
        return
    try:
        decisions = records(case.home, "decision", project=route.project)
    except FlywheelError:
        return  # the check of the store tells
    changes = [one for one in decisions if one.outcome in CHANGES]
    last = max(changes, key=lambda one: (one.at, one.id), default=None)
    said = last.deployment if last else f"{route.project}-v0"
    if said != route.champion.name:
        yield warning(
            f"{route.project}: the ledger's last change made {said} champion, and "
            f"{route.champion.name} serves",
            "the next start of flywheel serve writes down what serves",
        )
    else:
        why = f": {last.outcome} by {last.by}, {last.reason}" if last else ""
        yield ok(f"{route.project}: the ledger agrees{why}")


def _told(aliases: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'none'}" for name, version in aliases.items())

"""`flywheel erase`: all that is somebody's goes, and a search shows that nothing is left."""

import getpass
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli import echo, echo_json
from app.doctor.finding import size
from app.start import start
from flywheel.consent import day
from flywheel.errors import UsageError

if TYPE_CHECKING:
    from flywheel.data_section import RetentionSection
    from flywheel.home import Home
    from flywheel.lineage import Erasure
    from storage.erasure_plan import Plan

_MOMENTS = {"at": "began", "done": "done"}
_COUNTED = ("needles", "texts")
"""What a receipt counts beside the bytes that were searched."""


@click.command("erase")
@click.option("--user", help="Whose traces go.")
@click.option("--tenant", help="Whose traces go: of a customer, an organisation.")
@click.option("--conversation", help="Its id.")
@click.option("--trace", help="Its id, the sender's, or that of one of its responses.")
@click.option("--due", is_flag=True, help="What [retention] and senders' `expires` say is over.")
@click.option("--project", help="Only in this one, by name or folder. [default: all of the home]")
@click.option("--reason", default="", help="Why; it stands in the receipt.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    due: bool, project: str | None, reason: str, dry_run: bool, as_json: bool, **asked: str
) -> None:
    """Erase everything of a user, tenant, conversation or trace: traces and their copies, raw
    bytes, grades, feedback, problems, dataset rows, files of runs, caches.

    Datasets get successors without it, what was trained on it is marked, and the whole home is
    searched until nothing is found. Exit code 1 if something could not be removed; the receipt says
    what. Without a name it goes on with an erasure that was stopped. --due does at once what the
    flow `retention` does every night.
    """
    home = start(progress=True).at()
    from storage.erasure import erase, resume
    from storage.erasure_plan import plan_of
    from storage.reach import Asked

    given = {kind: value for kind, value in asked.items() if value}
    if len(given) + due > 1 or (dry_run and not given and not due):
        raise click.UsageError("name one: --user, --tenant, --conversation, --trace or --due")
    if due:
        receipts = _due(home, project, reason, dry_run, as_json)
    elif not given:
        receipts = resume(home)
        if not receipts:
            raise click.UsageError("name whom to erase: --user, --tenant, --conversation, --trace")
    else:
        ((kind, value),) = given.items()
        wanted = Asked(kind=kind, value=value, project=_name(home, project))  # type: ignore[arg-type]
        if dry_run:
            plan = plan_of(home, wanted)
            _show(as_json, _would(plan))
            return
        receipts = [erase(home, wanted, by=getpass.getuser(), reason=reason)]
    if not (due and as_json):
        for receipt in receipts:
            _show(as_json, _told(receipt))
    sys.exit(1 if any(one.left for one in receipts) else 0)


def _due(
    home: "Home", project: str | None, reason: str, dry_run: bool, as_json: bool
) -> "list[Erasure]":
    """Erases what is over, of each project by its own file; returns the receipts. A dry run has
    none. For scripts both are one object."""
    from storage.committer import commit
    from storage.erasure import erase, flag_later, resume
    from storage.erasure_plan import plan_of
    from storage.retention import due, projects, why

    receipts, told, now = [], [], time.time_ns()
    if not dry_run:
        receipts = resume(home)
        flag_later(home)
        commit(home)
    for name, section in _sections(home, project, projects(home)).items():
        asked = due(home, name, section, now=now)
        if asked is not None and dry_run:
            told.append({"project": name, **_would(plan_of(home, asked))})
        elif asked is not None:
            receipts.append(erase(home, asked, by=getpass.getuser(), reason=reason or why(name)))
    if as_json:
        echo_json({"due": told if dry_run else [_told(one) for one in receipts]})
        return receipts
    for one in told:
        _show(False, one)
    if not told and not receipts:
        echo("nothing is over")
    return receipts


def _sections(
    home: "Home", project: str | None, stored: list[str]
) -> "dict[str, RetentionSection]":
    """[retention] of each project; of one whose folder is not known only senders' words count."""
    from flywheel.data_section import RetentionSection
    from flywheel.known import known
    from flywheel.project import load_project

    folders = known(home)
    if project is not None:
        name = _name(home, project)
        assert name is not None
        folders, stored = {name: folders.get(name, Path(project))}, [name]
        if name != project:
            folders[name] = Path(project)
    return {
        name: load_project(folders[name]).retention
        if name in folders and (folders[name] / "flywheel.toml").is_file()
        else RetentionSection()
        for name in stored
    }


def _name(home: "Home", project: str | None) -> str | None:
    if project is None:
        return None
    if not (Path(project) / "flywheel.toml").is_file():
        from app.named import projects

        if project not in (known := projects(home)):
            raise UsageError(
                f"no project {project} is known here; there is {', '.join(known) or 'none'}: "
                "nothing was erased"
            )
        return project
    from flywheel.project import load_project

    return load_project(Path(project)).name


def _told(receipt: "Erasure") -> dict[str, Any]:
    return {name: getattr(receipt, name) for name in receipt.__struct_fields__}


def _would(plan: "Plan") -> dict[str, Any]:
    from storage.erasure_plan import counts_of

    return {
        "would_remove": counts_of(plan),
        "datasets": {one.id: f"{one.rows} of {one.of} rows" for one in plan.datasets},
        "flagged": [one.target for one in plan.marks if one.target_kind != "dataset"],
    }


def _show(as_json: bool, found: dict[str, Any]) -> None:
    if as_json:
        echo_json(found)
        return
    for line in lines(found):
        echo(line)


def lines(found: dict[str, Any]) -> Iterator[str]:
    """A receipt, or what would go, for people: moments as dates, bytes with a unit."""
    for name, value in found.items():
        told = name.replace("_", " ")
        if isinstance(value, dict):
            for key, one in value.items():
                yield f"{told:<12} {key}: {_counted(name, key, one)}"
        elif isinstance(value, list | tuple):
            yield from (f"{told:<12} {one}" for one in value)
        elif name in _MOMENTS and value is not None:
            yield f"{_MOMENTS[name]:<12} {day(value)}"
        elif name == "done":
            yield "not done yet: run `flywheel erase` again, it goes on"
        elif value != "":
            yield f"{told:<12} {value}"
    if not found.get("left", True):
        yield "nothing is left: every file of the home was searched"


def _counted(name: str, key: str, value: Any) -> str:
    if value is None:
        return "retired, no row is left"
    if isinstance(value, int):
        counted = name == "searched" and key.partition(" ")[0] in _COUNTED
        measured = key == "raw bytes" or (name == "searched" and not counted)
        return size(value) if measured else f"{value:,}"
    return str(value)
